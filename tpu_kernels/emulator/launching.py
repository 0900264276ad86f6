"""Scripts that start ranks themselves: torch_tpu's set_tpu_launch_env, then torchrun's main, on emulated chips.

torchrun starts each rank by the interpreter that PYTHON_EXEC names, if it is set. Here it names a small program that
starts Python on an emulated chip, so such a script needs no change.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_PYTHON_EXEC = "PYTHON_EXEC"


def install(force: bool = False) -> None:
    """Let `torch.tpu.distributed.set_tpu_launch_env` prepare a launch of emulated ranks; torch_tpu must be loaded."""
    import torch

    module: Any = torch

    def set_tpu_launch_env(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
        # Addresses and a topology would make torch_tpu wait for the chips of a slice.
        if _PYTHON_EXEC not in os.environ:
            os.environ[_PYTHON_EXEC] = str(_emulating_python(force))

    module.tpu.distributed.set_tpu_launch_env = set_tpu_launch_env


def skip_exit_barrier() -> None:
    """Let this process end although other ranks still run: it failed, and they may be waiting for it.

    torch_tpu waits at exit for all ranks, of a rank that failed too, and so keeps torchrun from seeing that it failed.
    """
    device: Any = sys.modules.get("torch_tpu._internal.device._device_module")
    if device is not None:
        atexit.unregister(device.TpuDeviceModule._shutdown_runtime)


def _emulating_python(force: bool) -> Path:
    """A program that runs `[-u] SCRIPT ARGS...` and `[-u] -m MODULE ARGS...` on an emulated chip; gone at exit."""
    folder = Path(tempfile.mkdtemp(prefix="tpu-kernels-emulator-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    command = [sys.executable, "-u", "-m", "tpu_kernels.emulator", *(["--force"] if force else [])]
    program = folder / "python"
    program.write_text(f'#!/bin/sh\n[ "$1" = -u ] && shift\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o700)
    return program

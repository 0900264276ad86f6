"""Start the demonstration in a process of its own: on the TPU if there is one, else on the emulated TPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tpu_kernels
from tpu_kernels.emulator import find_tpu_chips

_WORKER = Path(__file__).with_name("worker.py")


def run_demo(*, new_tokens: int = 24, model: str | os.PathLike[str] | None = None) -> int:
    """Run the demonstration and print it.

    Returns the exit code: 0 if it showed what it promises (tokens equal, nothing compiled after the first
    call), 1 if not, 2 if the emulated TPU could not start. `new_tokens` is the length of each continuation,
    `model` a folder or Hub id to use instead of the bundled model. It runs in a process of its own, because
    the emulated TPU must start before torch is imported, and with an empty compile cache, so that every
    compilation is counted.
    """
    command = [sys.executable, *worker_arguments(new_tokens=new_tokens, model=model)]
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-demo-") as cache:
        return subprocess.run(command, env=_environment(cache), check=False).returncode


def worker_arguments(*, new_tokens: int, model: str | os.PathLike[str] | None) -> list[str]:
    """Arguments for a Python interpreter to run the worker; through the emulator where no TPU is seen."""
    emulate = [] if find_tpu_chips() else ["-m", "tpu_kernels.emulator"]
    chosen = [] if model is None else ["--model", os.fspath(model)]
    return [*emulate, str(_WORKER), "--new-tokens", str(new_tokens), *chosen]


def _environment(cache: str) -> dict[str, str]:
    """This process's environment, with this copy of the package importable and a compile cache of its own."""
    root = str(Path(tpu_kernels.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TORCHINDUCTOR_CACHE_DIR": cache}

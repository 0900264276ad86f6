"""A TPU on a laptop: the real torch_tpu on XLA's CPU plugin.

    python -m tpu_kernels.emulator SCRIPT [ARGS...]
    pytest -p tpu_kernels.emulator.pytest_plugin

or, as the first thing that a program does, before anything imports torch:

    from tpu_kernels import emulator
    emulator.start()

Importing this package loads neither torch nor jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tpu_kernels.emulator.state import compilations, executions, is_active, transferred

if TYPE_CHECKING:
    from tpu_kernels.emulator.bootstrap import start
    from tpu_kernels.emulator.capturing import capture
    from tpu_kernels.emulator.chips import find_tpu_chips
    from tpu_kernels.emulator.recording import CapturedProgram, CapturedPrograms
    from tpu_kernels.emulator.runner import run_script

__all__ = [
    "CapturedProgram",
    "CapturedPrograms",
    "capture",
    "compilations",
    "executions",
    "find_tpu_chips",
    "is_active",
    "run_script",
    "start",
    "transferred",
]

_LAZY = {
    "CapturedProgram": "tpu_kernels.emulator.recording",
    "CapturedPrograms": "tpu_kernels.emulator.recording",
    "capture": "tpu_kernels.emulator.capturing",
    "find_tpu_chips": "tpu_kernels.emulator.chips",
    "run_script": "tpu_kernels.emulator.runner",
    "start": "tpu_kernels.emulator.bootstrap",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)

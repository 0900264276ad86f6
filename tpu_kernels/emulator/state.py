"""What the emulated TPU of this process has done so far. Imports nothing heavy."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_kernels.emulator.recording import Recorder


@dataclass
class State:
    """Counters since the start of the emulator; `active` turns True once the device is up.

    `recorder` is set inside `capture()`.
    """

    active: bool = False
    compilations: int = 0
    executions: int = 0
    transferred: int = 0
    recorder: Recorder | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, compilations: int = 0, executions: int = 0, transferred: int = 0) -> None:
        """Count; torch_tpu compiles, runs and sends from threads of its own."""
        with self.lock:
            self.compilations += compilations
            self.executions += executions
            self.transferred += transferred


STATE = State()


def is_active() -> bool:
    """True in a process whose TPU is the emulated one."""
    return STATE.active


def compilations() -> int:
    """XLA programs that PJRT compiled so far in this process."""
    return STATE.compilations


def executions() -> int:
    """XLA programs that ran on the emulated device so far in this process."""
    return STATE.executions


def transferred() -> int:
    """Bytes sent from the host to the emulated device so far in this process."""
    return STATE.transferred

"""Garbage is collected on the main thread alone.

torch_tpu ends the process where one of its tensors is freed on another thread ("only allowed in the dispatch thread").
Python collects on whichever thread allocates, and the emulator's part of a compilation allocates on torch_tpu's own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import threading

_PENDING_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_EVERY = 0.1
"""Seconds between two looks at the counters of the collector."""


def install() -> None:
    """Switch the automatic collector off, and let the main thread collect when the counters say that it is time."""
    gc.disable()
    stopped = threading.Event()
    atexit.register(stopped.set)
    threading.Thread(target=_ask, args=(stopped,), name="tpu-kernels garbage", daemon=True).start()


def _due() -> int | None:
    """The oldest generation whose counter is past its threshold, or None."""
    pairs = list(zip(gc.get_count(), gc.get_threshold(), strict=True))
    return max((generation for generation, (count, limit) in enumerate(pairs) if 0 < limit < count), default=None)


def _collect(_: object) -> int:
    generation = _due()
    if generation is not None:
        gc.collect(generation)
    return 0


_COLLECT = _PENDING_CALL(_collect)


def _ask(stopped: threading.Event) -> None:
    while not stopped.wait(_EVERY):
        if _due() is not None:
            ctypes.pythonapi.Py_AddPendingCall(_COLLECT, None)

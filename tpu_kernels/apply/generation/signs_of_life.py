"""A line of log every half minute while something long goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tpu_kernels._logging import logger

EVERY = 30.0
"""Seconds between two lines."""


@contextmanager
def signs_of_life(what: str, every: float = EVERY) -> Iterator[None]:
    """Log at level info that `what` begins and how long it took, and at level warning that it still goes on."""
    over = threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not over.wait(every):
            logger.warning("still %s, %.0f s so far", what, time.monotonic() - started)

    logger.info("%s", what)
    thread = threading.Thread(target=report, name="tpu-kernels signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        logger.info("%s took %.1f s", what, time.monotonic() - started)

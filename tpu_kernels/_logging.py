"""The logger `tpu_kernels`, whose level TPU_KERNELS_VERBOSITY sets: debug, info, warning or error."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

VARIABLE: Final = "TPU_KERNELS_VERBOSITY"
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

logger: Final = logging.getLogger("tpu_kernels")


def of_first_rank(record: logging.LogRecord) -> bool:
    """Whether a record is for people: of several processes that do the same, the first alone speaks, but for errors.

    TPU_KERNELS_VERBOSITY=debug lets every rank speak.
    """
    first = os.environ.get("RANK", "0") in ("", "0")
    return first or record.levelno >= logging.ERROR or verbosity() <= logging.DEBUG


class _StderrHandler(logging.Handler):
    """Writes to stderr, unless the program has set up logging itself: then records go its way alone."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(f"tpu_kernels: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr)


def verbosity() -> int:
    """The level that the environment asks for; WARNING if it asks for none, or for one that there is not."""
    return LEVELS.get(os.environ.get(VARIABLE, "warning").strip().lower(), logging.WARNING)


def configure() -> None:
    """Give the logger its level and its handler. Safe to call again: it follows the environment."""
    logger.setLevel(verbosity())
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
        logger.addFilter(of_first_rank)
    asked = os.environ.get(VARIABLE, "")
    if asked and asked.strip().lower() not in LEVELS:
        logger.warning("%s=%s is unknown; use one of %s.", VARIABLE, asked, ", ".join(LEVELS))

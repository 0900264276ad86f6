"""How a rank tells the launcher of its error: the error file of torchrun, with the time and who was first."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_OURS = "tpu_kernels"
_FIRST = "first_failure"
_LONGEST = 160


@dataclass(frozen=True)
class Record:
    """What a rank wrote before it ended: `time_ns` since the epoch; `first` if it was the first of its host."""

    error: str
    call_stack: str
    time_ns: int
    exit_code: int
    first: bool


def record_failure(error: BaseException, exit_code: int) -> bool:
    """Write this rank's error for the launcher; True if no other rank of this host has failed before.

    Otherwise one line on stderr says what this rank met and which rank was first: it is mostly a connection that the
    first one left behind.
    """
    path = os.environ.get(_ERROR_FILE)
    if not path:
        return True
    now = time.time_ns()
    summary = "".join(traceback.format_exception_only(error)).strip()
    call_stack = "".join(traceback.format_exception(error))
    try:
        first = _first_to_fail(Path(path).parent.parent / _FIRST)
        record = {
            "message": {
                "message": summary,
                "extraInfo": {"py_callstack": call_stack, "timestamp": str(now // 10**9)},
            },
            _OURS: {"time_ns": now, "exit_code": exit_code, "first": first is None},
        }
        Path(path).write_text(json.dumps(record))
    except OSError:  # the folder is gone, or the disk is full: the traceback matters more
        return True
    if first is None:
        return True
    if isinstance(error, KeyboardInterrupt):  # all ranks got it, and one traceback shows where
        return False
    line = textwrap.shorten(summary, _LONGEST, placeholder=" ...")
    print(f"rank {_rank()}: {line} (after {first} had failed)", file=sys.stderr)
    return False


def read_record(error_file_data: dict[str, Any]) -> Record | None:
    """The record in an error file that torchrun has read; None if it is not ours."""
    ours = error_file_data.get(_OURS)
    if not ours:
        return None
    message = error_file_data["message"]
    return Record(error=message["message"], call_stack=message["extraInfo"]["py_callstack"], **ours)


def _first_to_fail(file: Path) -> str | None:
    """None if it is this rank, which then stands in the file; else the rank that stands there."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return file.read_text() or "another rank"
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"rank {_rank()}")
    return None


def _rank() -> str:
    return os.environ.get("RANK", "?")

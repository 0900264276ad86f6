"""Real timings, on a machine that has a TPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tpu_kernels.chips import CHIPS
from tpu_kernels.errors import CompileError, explain
from tpu_kernels.lab.cost.subject import Subject
from tpu_kernels.lab.processes import child_environment, last_line

CALLS: Final = 50
SAMPLES: Final = 5


def local_generation() -> str | None:
    """The TPU generation of this machine, None if it has no TPU (or one that is not known)."""
    if not any(Path("/dev").glob("accel*")) and not any(Path("/dev/vfio").glob("[0-9]*")):
        return None
    device, _ = run_timings([])
    if device["platform"] != "tpu":
        return None
    return next((chip.name for chip in CHIPS.values() if chip.device_kind == device["device_kind"]), None)


def time_on_tpu(subjects: Sequence[Subject]) -> list[float | None]:
    """Seconds of a call of each subject's kernel; None for one that does not run.

    Raises CompileError where this machine's device is no TPU, or JAX cannot start.
    """
    device, answers = run_timings(subjects)
    if device["platform"] != "tpu":
        raise CompileError(
            explain("Kernels cannot be timed here.", needs="a TPU", got=f"a device of the kind {device['platform']}")
        )
    return [None if answer["error"] else answer["seconds"] for answer in answers]


def run_timings(
    subjects: Sequence[Subject], *, calls: int = CALLS, samples: int = SAMPLES
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The device of a new process, and its answers: `seconds`, or `error`."""
    requests = [subject.job.request(values=subject.values, calls=calls, samples=samples) for subject in subjects]
    done = subprocess.run(
        [sys.executable, "-m", "tpu_kernels.lab.tune.timing_worker"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if len(lines) != len(requests) + 1:
        raise CompileError(explain("The process that times kernels died.", got=last_line(done.stderr)))
    return lines[0], lines[1:]

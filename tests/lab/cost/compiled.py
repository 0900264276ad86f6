"""The kernels of `kernels.py` as libtpu schedules them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_kernels.lab.aot import AotJob, Argument
from tpu_kernels.lab.cost.compiling import ScheduledJob, schedule_jobs
from tpu_kernels.lab.cost.dumps import KernelDump

KERNELS = Path(__file__).with_name("kernels.py")


def job(function: str, *arguments: Argument, **keywords: Any) -> AotJob:
    return AotJob(function, KERNELS, function, arguments, keywords)


def scheduled(
    generation: str, jobs: Sequence[AotJob], values: Sequence[Mapping[int, Any]] | None = None
) -> list[ScheduledJob]:
    """All of them compiled."""
    results = schedule_jobs(jobs, generation, values=values)
    assert [result.error for result in results if not result.ok] == []
    return results


def only_kernel(result: ScheduledJob) -> KernelDump:
    """The schedule of the Pallas kernel of a job."""
    return next(dump for name, dump in result.dumps.items() if name.startswith(result.job.function))

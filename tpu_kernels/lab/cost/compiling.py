"""Compiles kernels with libtpu and keeps its schedules; each batch of jobs in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.chips import ChipInfo, chip
from tpu_kernels.lab.aot import AotJob, one_line
from tpu_kernels.lab.cost.dumps import KernelDump, libtpu_arguments, read_dumps
from tpu_kernels.lab.cost.hlo import HloInstruction
from tpu_kernels.lab.cost.xla_time import Arguments, ProgramCost, program_cost
from tpu_kernels.lab.processes import compile_answers, compiler_environment

_WORKER: Final = "tpu_kernels.lab.cost.compile_worker"


@dataclass(frozen=True)
class ScheduledJob:
    """What libtpu made of a job: its optimized HLO and the schedule of each kernel and fusion in it."""

    job: AotJob
    chip: ChipInfo
    error: str | None
    """None if it compiled, else the compiler's reason in one line."""
    seconds: float = 0.0
    hlo: str = field(default="", repr=False)
    dumps: Mapping[str, KernelDump] = field(default_factory=dict, repr=False)
    steering: Mapping[str, Arguments] = field(default_factory=dict)
    """Values of the scalar-prefetch operands of each Pallas kernel, by its name."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def arguments(self, instruction: HloInstruction) -> Arguments:
        """What steers the kernel of that instruction."""
        return self.steering.get(instruction.name.rsplit(".", 1)[0], {})

    def cost(self) -> ProgramCost:
        """What one call costs: the kernel, and what XLA runs around it. ValueError if it did not compile."""
        return program_cost(self.hlo, self.dumps, self.chip, self.arguments)


def schedule_jobs(
    jobs: Sequence[AotJob],
    generation: str,
    *,
    values: Sequence[Mapping[int, Any]] | None = None,
    timeout: float = 900.0,
) -> list[ScheduledJob]:
    """Compiles `jobs` for `generation` in one new process and reads the schedules.

    `values` are for each job the contents of some arguments, by position, as nested lists: those from which the
    kernel's scalar-prefetch operands are computed. A job that the compiler refuses is a result with an `error`.

    Raises:
        ValueError: unknown generation.
        CompileError: the compiler could not be started, died again and again, or took more than `timeout` seconds.
    """
    info = chip(generation)
    given = values if values is not None else [{}] * len(jobs)
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-cost-") as work:
        dumped_to = Path(work) / "dumps"
        dumped_to.mkdir()
        requests = [
            {
                "kernel": str(job.kernel),
                "function": job.function,
                "arguments": job.arguments,
                "keywords": job.keywords,
                "values": known,
                "dumped_to": str(dumped_to),
                "folder": str(Path(work) / str(number)),
            }
            for number, (job, known) in enumerate(zip(jobs, given, strict=True))
        ]
        answers = compile_answers(
            _WORKER,
            info.topology,
            requests,
            timeout=timeout,
            what="kernels",
            environment=compiler_environment(LIBTPU_INIT_ARGS=libtpu_arguments(dumped_to)),
        )
        return [
            _scheduled(job, info, answer, Path(work) / str(number))
            for number, (job, answer) in enumerate(zip(jobs, answers, strict=True))
        ]


def _scheduled(job: AotJob, info: ChipInfo, answer: dict[str, Any], folder: Path) -> ScheduledJob:
    if answer["error"] is not None:
        return ScheduledJob(job, info, one_line(answer["error"]), answer["seconds"])
    steering = {
        name: {int(number): value for number, value in operands.items()}
        for name, operands in answer["steering"].items()
    }
    hlo = (folder / "optimized.hlo").read_text()
    return ScheduledJob(job, info, None, answer["seconds"], hlo, read_dumps(folder), steering)

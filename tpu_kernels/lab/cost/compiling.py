"""Compiles kernels with libtpu and keeps its schedules; each batch of jobs in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.chips import ChipInfo
from tpu_kernels.lab.aot import AotJob
from tpu_kernels.lab.cost.dumps import KernelDump, read_dumps
from tpu_kernels.lab.cost.hlo import HloInstruction
from tpu_kernels.lab.cost.xla_time import Arguments, ProgramCost, program_cost
from tpu_kernels.lab.messages import one_line
from tpu_kernels.lab.processes import compile_answers, dumping_environment
from tpu_kernels.lab.targets import target_of

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
    vmem_bytes: int = 0
    """What the largest kernel takes of VMEM at least: its scratch arrays, and two buffers for each block."""

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
    target: str,
    *,
    values: Sequence[Mapping[int, Any]] | None = None,
    timeout: float = 900.0,
) -> list[ScheduledJob]:
    """Compiles `jobs` for `target`, a generation or a topology ("v5e:1x1"), and reads the schedules.

    `values` are for each job the contents of some arguments, by position, as nested lists: those from which the
    kernel's scalar-prefetch operands are computed. A job that the compiler refuses is a result with an `error`.

    Raises:
        ValueError: unknown generation, malformed topology.
        CompileError: the compiler could not be started, died again and again, or took more than `timeout` seconds.
    """
    aim = target_of(target)
    given = values if values is not None else [{}] * len(jobs)
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-cost-") as work:
        dumped_to = Path(work) / "dumps"
        dumped_to.mkdir()
        requests = [
            job.request(values=known, dumped_to=str(dumped_to), folder=str(Path(work) / str(number)))
            for number, (job, known) in enumerate(zip(jobs, given, strict=True))
        ]
        answers = compile_answers(
            _WORKER,
            aim.topology,
            requests,
            timeout=timeout,
            what="kernels",
            environment=dumping_environment(dumped_to),
        )
        return [
            _scheduled(job, aim.chip, answer, Path(work) / str(number))
            for number, (job, answer) in enumerate(zip(jobs, answers, strict=True))
        ]


def _scheduled(job: AotJob, info: ChipInfo, answer: dict[str, Any], folder: Path) -> ScheduledJob:
    if answer["error"] is not None:
        return ScheduledJob(job, info, one_line(answer["error"]), answer["seconds"])
    steering = {
        name: {int(number): value for number, value in call["scalars"].items()}
        for name, call in answer["kernels"].items()
    }
    vmem_bytes = max((call["vmem_bytes"] for call in answer["kernels"].values()), default=0)
    hlo = (folder / "optimized.hlo").read_text()
    return ScheduledJob(job, info, None, answer["seconds"], hlo, read_dumps(folder), steering, vmem_bytes)

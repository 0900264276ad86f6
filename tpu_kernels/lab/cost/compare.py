"""Kernels beside what XLA makes of the op's torch reference: the same sizes, the same compiler, one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.errors import TpuKernelsError
from tpu_kernels.lab.cost.compiling import ScheduledJob, schedule_jobs
from tpu_kernels.lab.cost.dumps import read_dumps
from tpu_kernels.lab.cost.kernel_cost import KernelCost, kernel_cost
from tpu_kernels.lab.cost.subject import Subject, kernel_source, op_subject
from tpu_kernels.lab.cost.xla_time import ProgramCost, program_cost
from tpu_kernels.lab.messages import one_line
from tpu_kernels.lab.programs import Program, capture_each, compile_programs
from tpu_kernels.lab.targets import GENERATIONS, target_of
from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.catalog import resized
from tpu_kernels.specs import KernelSpec

XLA: Final = "XLA"
"""Label of the op's torch reference, as XLA compiles it."""


@dataclass(frozen=True)
class Plain:
    """What plain torch functions cost for one call, by label: XLA, and the case's other baselines."""

    costs: Mapping[str, ProgramCost] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Those without a cost, and why: torch.compile does not take them whole, or libtpu refuses them."""


@dataclass(frozen=True)
class Comparison:
    """One call on one generation."""

    subject: Subject
    generation: str
    """Or the topology that was asked for."""
    kernel: KernelCost | None
    """None if the kernel did not compile."""
    error: str | None
    plain: Plain = Plain()
    """Empty if it was not asked for."""

    @property
    def xla(self) -> ProgramCost | None:
        """The reference's cost; None if it was not asked for, or was refused."""
        return self.plain.costs.get(XLA)

    @property
    def fastest(self) -> str | None:
        """Label of the fastest baseline, None if there is none."""
        costs = self.plain.costs
        return min(costs, key=lambda label: costs[label].seconds, default=None)

    @property
    def best(self) -> ProgramCost | None:
        """The fastest baseline's cost."""
        return None if self.fastest is None else self.plain.costs[self.fastest]

    @property
    def ratio(self) -> float | None:
        """How many times faster the kernel is than the fastest baseline."""
        return None if self.kernel is None or self.best is None else self.best.seconds / self.kernel.seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON: times in microseconds, bytes, shares."""
        xla = self.xla
        return {
            "case": self.subject.name,
            "dtype": self.subject.dtype,
            "chip": self.generation,
            **self.subject.sizes,
            "kernel_us": None if self.kernel is None else 1e6 * self.kernel.seconds,
            "limit_us": None if self.kernel is None else 1e6 * self.kernel.limit,
            "xla_us": None if xla is None else 1e6 * xla.seconds,
            "xla_bytes": None if xla is None else xla.hbm_bytes,
            "baselines": {
                label: {"us": 1e6 * cost.seconds, "bytes": cost.hbm_bytes}
                for label, cost in self.plain.costs.items()
                if label != XLA
            },
            "refused": dict(self.plain.refused),
            "fastest": self.fastest,
            "ratio": self.ratio,
            "error": self.error,
            "kernel": None if self.kernel is None else self.kernel.as_dict(),
        }


def spec_subjects(
    spec: KernelSpec, cases: Iterable[OpCase], target: str, *, dtype: str = "bfloat16", **sizes: int | None
) -> list[Subject]:
    """The calls to cost, with the spec's tuning for that target's generation; `sizes` as `catalog.resized` has them.

    Raises ValueError for a size that the cases do not have.
    """
    kernel, tuning = kernel_source(spec), spec.tuning(target_of(target).chip.name)
    return [op_subject(resized(case, **sizes), kernel, dtype, **tuning) for case in cases]


def compare(
    spec: KernelSpec,
    cases: Sequence[OpCase],
    generations: Sequence[str] = GENERATIONS,
    *,
    against_xla: bool = True,
    say: Callable[[str], None] = lambda _: None,
    **sizes: Any,
) -> list[Comparison]:
    """The costs of a spec's kernel on `cases` and `generations`, beside XLA's and those of the cases' other baselines.

    `sizes` and dtype as in `spec_subjects`; `say` is told what runs.

    Raises:
        ValueError: an unknown generation, a size that the cases do not have, or that does not fit.
        KernelLoadError: the kernel's JAX source is not here.
        CompileError: the compiler could not be started.
    """
    programs: list[Captured] | None = None
    results: list[Comparison] = []
    for generation in generations:
        subjects = spec_subjects(spec, cases, generation, **sizes)
        if against_xla and programs is None:
            say(f"capturing what {spec.name} is compared with")
            programs = captured(subjects)
        say(f"compiling {len(subjects)} cases of {spec.name} for {generation}")
        results += compared(subjects, generation, None if programs is None else plain_costs(programs, generation))
    return results


def costs(subjects: Sequence[Subject], generation: str, plain: Sequence[ProgramCost | None]) -> list[Comparison]:
    """The costs of `subjects` by their kernels, beside those of XLA in the same order."""
    return compared(subjects, generation, [Plain({} if one is None else {XLA: one}) for one in plain])


def compared(subjects: Sequence[Subject], generation: str, plain: Sequence[Plain] | None = None) -> list[Comparison]:
    """The costs of `subjects` by their kernels, beside `plain` in the same order."""
    compiled = schedule_jobs(
        [subject.job for subject in subjects], generation, values=[subject.values for subject in subjects]
    )
    return [
        Comparison(subject, generation, *_of_kernel(subject, scheduled), beside)
        for subject, scheduled, beside in zip(subjects, compiled, plain or [Plain()] * len(subjects), strict=True)
    ]


def _of_kernel(subject: Subject, scheduled: ScheduledJob) -> tuple[KernelCost | None, str | None]:
    """The kernel's cost, or why there is none."""
    if not scheduled.ok:
        return None, scheduled.error
    try:
        return kernel_cost(subject, scheduled), None
    except ValueError as error:
        return None, str(error)


Captured = Mapping[str, Program | TpuKernelsError]
"""The programs of a call's reference and baselines by label, or why there is none."""


def captured(subjects: Sequence[Subject]) -> list[Captured]:
    """What each subject is compared with; all captured in one process."""
    functions = [{XLA: subject.reference, **subject.baselines} for subject in subjects]
    programs = iter(capture_each([case for by_label in functions for case in by_label.values()]))
    return [{label: next(programs) for label in by_label} for by_label in functions]


def plain_costs(programs: Sequence[Captured], generation: str) -> list[Plain]:
    """What captured programs cost on `generation`."""
    whole = [one for by_label in programs for one in by_label.values() if isinstance(one, Program)]
    results = iter(_program_costs(whole, generation))
    plain = []
    for by_label in programs:
        found = {
            label: next(results) if isinstance(one, Program) else one_line(str(one)) for label, one in by_label.items()
        }
        costs = {label: cost for label, cost in found.items() if isinstance(cost, ProgramCost)}
        plain.append(Plain(costs, {label: why for label, why in found.items() if isinstance(why, str)}))
    return plain


def xla_costs(programs: Sequence[Program], generation: str) -> list[ProgramCost | None]:
    """What captured programs cost on `generation`; None for one that libtpu refuses."""
    return [None if isinstance(cost, str) else cost for cost in _program_costs(programs, generation)]


def _program_costs(programs: Sequence[Program], generation: str) -> list[ProgramCost | str]:
    """The cost of each, or libtpu's reason."""
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-cost-") as folder:
        return [
            program_cost(one.hlo, read_dumps(one.dump), one.target.chip)
            if one.error is None and one.dump
            else one.error or "no schedules were written"
            for one in compile_programs(programs, generation, dump_to=Path(folder))
        ]

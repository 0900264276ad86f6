"""Kernels beside what XLA makes of the op's torch reference: the same sizes, the same compiler, one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.lab.cost.compiling import schedule_jobs
from tpu_kernels.lab.cost.dumps import read_dumps
from tpu_kernels.lab.cost.kernel_cost import KernelCost, kernel_cost
from tpu_kernels.lab.cost.subject import Subject, kernel_source, op_subject
from tpu_kernels.lab.cost.xla_time import ProgramCost, program_cost
from tpu_kernels.lab.programs import FunctionCase, Program, capture_functions, compile_programs
from tpu_kernels.lab.targets import GENERATIONS, target_of
from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.catalog import resized
from tpu_kernels.specs import KernelSpec

XLA: Final = "XLA"
"""Label of the op's torch reference, as XLA compiles it."""

Plain = Mapping[str, ProgramCost | None]
"""What plain torch functions cost, by label; None for one that libtpu refuses."""


@dataclass(frozen=True)
class Comparison:
    """One call on one generation."""

    subject: Subject
    generation: str
    """Or the topology that was asked for."""
    kernel: KernelCost | None
    """None if the kernel did not compile."""
    error: str | None
    plain: Plain = field(default_factory=dict)
    """The reference, called XLA, and the case's other baselines; empty if they were not asked for."""

    @property
    def xla(self) -> ProgramCost | None:
        """The reference's cost; None if it was not asked for, or libtpu refuses it."""
        return self.plain.get(XLA)

    @property
    def fastest(self) -> str | None:
        """Label of the fastest baseline, None if there is none."""
        times = {label: cost.seconds for label, cost in self.plain.items() if cost is not None}
        return min(times, key=times.__getitem__, default=None)

    @property
    def best(self) -> ProgramCost | None:
        """The fastest baseline's cost."""
        return None if self.fastest is None else self.plain[self.fastest]

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
                label: None if cost is None else {"us": 1e6 * cost.seconds, "bytes": cost.hbm_bytes}
                for label, cost in self.plain.items()
                if label != XLA
            },
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
    programs: list[dict[str, Program]] | None = None
    results: list[Comparison] = []
    for generation in generations:
        subjects = spec_subjects(spec, cases, generation, **sizes)
        if against_xla and programs is None:
            say(f"capturing what {spec.name} is compared with")
            programs = _captured([{XLA: subject.reference, **subject.baselines} for subject in subjects])
        say(f"compiling {len(subjects)} cases of {spec.name} for {generation}")
        plain = None if programs is None else _plain_costs(programs, generation)
        results += costs(subjects, generation, plain)
    return results


def costs(
    subjects: Sequence[Subject], generation: str, plain: Sequence[Plain | ProgramCost | None] | None = None
) -> list[Comparison]:
    """The costs of `subjects` by their kernels, beside those in `plain`, in the same order."""
    compiled = schedule_jobs(
        [subject.job for subject in subjects], generation, values=[subject.values for subject in subjects]
    )
    beside = [one if isinstance(one, Mapping) else {XLA: one} for one in plain or [{}] * len(subjects)]
    return [
        Comparison(subject, generation, kernel_cost(subject, scheduled) if scheduled.ok else None, scheduled.error, own)
        for subject, scheduled, own in zip(subjects, compiled, beside, strict=True)
    ]


def _captured(functions: Sequence[Mapping[str, FunctionCase]]) -> list[dict[str, Program]]:
    """The program of each function, by the same labels; all in one process."""
    programs = iter(capture_functions([case for by_label in functions for case in by_label.values()]))
    return [{label: next(programs) for label in by_label} for by_label in functions]


def _plain_costs(programs: Sequence[Mapping[str, Program]], generation: str) -> list[Plain]:
    found = iter(xla_costs([program for by_label in programs for program in by_label.values()], generation))
    return [{label: next(found) for label in by_label} for by_label in programs]


def xla_costs(programs: Sequence[Program], generation: str) -> list[ProgramCost | None]:
    """What captured programs cost on `generation`; None for one that libtpu refuses."""
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-cost-") as folder:
        compiled = compile_programs(programs, generation, dump_to=Path(folder))
        return [
            program_cost(one.hlo, read_dumps(one.dump), one.target.chip) if one.ok and one.dump else None
            for one in compiled
        ]

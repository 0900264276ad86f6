"""Kernels beside what XLA makes of the op's torch reference: the same sizes, the same compiler, one run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpu_kernels.lab.cost.compiling import schedule_jobs
from tpu_kernels.lab.cost.dumps import read_dumps
from tpu_kernels.lab.cost.kernel_cost import KernelCost, kernel_cost
from tpu_kernels.lab.cost.subject import Subject, attention_subject, kernel_source, resized
from tpu_kernels.lab.cost.xla_time import ProgramCost, program_cost
from tpu_kernels.lab.programs import Program, capture_functions, compile_programs
from tpu_kernels.lab.targets import GENERATIONS, target_of
from tpu_kernels.ops.attention.cases import CASES, AttentionCase, cases_named
from tpu_kernels.specs import KernelSpec

REPRESENTATIVES: Final = (
    *(case.name for case in CASES if case.model == CASES[0].model),
    next(case.name for case in CASES if case.sinks and case.shape.is_decode),
)
"""Cases that are costed when none are named: both calls of a plain model, and a decode step with a window and sinks."""


@dataclass(frozen=True)
class Comparison:
    """One call on one generation."""

    subject: Subject
    generation: str
    """Or the topology that was asked for."""
    kernel: KernelCost | None
    """None if the kernel did not compile."""
    error: str | None
    xla: ProgramCost | None
    """None if it was not asked for, or XLA could not compile the reference."""

    @property
    def ratio(self) -> float | None:
        """How many times faster the kernel is."""
        return None if self.kernel is None or self.xla is None else self.xla.seconds / self.kernel.seconds

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
            "ratio": self.ratio,
            "error": self.error,
            "kernel": None if self.kernel is None else self.kernel.as_dict(),
        }


def chosen_cases(names: Sequence[str] = ()) -> list[AttentionCase]:
    """The cases of those names ("NAME/decode", or "NAME" for all of a model); without names a few that differ.

    Raises ValueError for a name that no case has.
    """
    return cases_named(names or REPRESENTATIVES)


def spec_subjects(
    spec: KernelSpec,
    cases: Iterable[AttentionCase],
    target: str,
    *,
    dtype: str = "bfloat16",
    batch: int | None = None,
    max_len: int | None = None,
    length: int | None = None,
) -> list[Subject]:
    """The calls to cost, with the spec's tuning for that target's generation. `length` None is half of the cache."""
    kernel, tuning = kernel_source(spec), spec.tuning(target_of(target).chip.name)
    sized = [resized(case, batch, max_len) for case in cases]
    return [
        attention_subject(case, kernel, dtype, length or max(case.shape.length // 2, case.shape.queries), **tuning)
        for case in sized
    ]


def compare(
    spec: KernelSpec,
    cases: Sequence[AttentionCase],
    generations: Sequence[str] = GENERATIONS,
    *,
    against_xla: bool = True,
    **sizes: Any,
) -> list[Comparison]:
    """The costs of a spec's kernel on `cases` and `generations`, beside XLA's. `sizes` as in `spec_subjects`.

    Raises:
        ValueError: an unknown generation, or a length that does not fit.
        KernelLoadError: the kernel's JAX source is not here.
        CompileError: the compiler could not be started.
    """
    programs: list[Program] | None = None
    results: list[Comparison] = []
    for generation in generations:
        subjects = spec_subjects(spec, cases, generation, **sizes)
        if against_xla and programs is None:
            programs = capture_functions([subject.reference for subject in subjects])
        plain = [None] * len(subjects) if programs is None else xla_costs(programs, generation)
        results += costs(subjects, generation, plain)
    return results


def costs(subjects: Sequence[Subject], generation: str, plain: Sequence[ProgramCost | None]) -> list[Comparison]:
    """The costs of `subjects` by their kernels, beside those of XLA in the same order."""
    compiled = schedule_jobs(
        [subject.job for subject in subjects], generation, values=[subject.values for subject in subjects]
    )
    return [
        Comparison(subject, generation, kernel_cost(subject, scheduled) if scheduled.ok else None, scheduled.error, xla)
        for subject, scheduled, xla in zip(subjects, compiled, plain, strict=True)
    ]


def xla_costs(programs: Sequence[Program], generation: str) -> list[ProgramCost | None]:
    """What captured programs cost on `generation`; None for one that libtpu refuses."""
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-cost-") as folder:
        compiled = compile_programs(programs, generation, dump_to=Path(folder))
        return [
            program_cost(one.hlo, read_dumps(one.dump), one.target.chip) if one.ok and one.dump else None
            for one in compiled
        ]

"""The search: every candidate on every case, by the estimate or on the TPU of this machine.

A spec has one tuning per generation, for all layers and phases. So a candidate is judged over all cases together: by
the geometric mean of its times against those of the sizes that the kernel picks itself, and it must not be much slower
on any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tpu_kernels._logging import logger
from tpu_kernels.chips import CHIPS
from tpu_kernels.lab.aot import AotJob
from tpu_kernels.lab.cost.compiling import schedule_jobs
from tpu_kernels.lab.cost.subject import Subject
from tpu_kernels.lab.tune.candidates import OWN_SIZES, Tuning
from tpu_kernels.specs import KernelSpec

Search = Callable[[str], Sequence[Subject]]

VMEM_SHARE: Final = 0.8
"""Part of a core's VMEM that a kernel's arrays may take. The rest is for what the compiler adds: values that do not
fit the registers, and what other operations of a model keep there."""

LEAST_GAIN: Final = 0.02
"""A tuning must be this much faster over all cases to be written: estimates are no better than that."""

WORST_LOSS: Final = 0.05
"""And no case may become slower by more than this."""


@dataclass(frozen=True)
class Call:
    """One candidate, to be judged on one case."""

    subject: Subject
    tuning: Tuning

    @property
    def tuned(self) -> Subject:
        return with_tuning(self.subject, self.tuning)


@dataclass(frozen=True)
class Measured:
    """One candidate on one case."""

    subject: Subject
    tuning: Tuning
    seconds: float | None
    """None if it cannot be used."""
    why_not: str = ""


@dataclass(frozen=True)
class Tuned:
    """What the search found for one generation."""

    generation: str
    best: Tuning
    """OWN_SIZES if nothing was better."""
    gain: float
    """How much faster `best` is over all cases: 0.1 means that times are divided by 1.1."""
    measured: tuple[Measured, ...]
    by: str
    """"estimate", or "TPU" if the candidates were timed."""
    note: str = ""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Candidates that could not be used, and why."""

    def times(self, tuning: Tuning) -> dict[str, float | None]:
        """Seconds of a candidate, by case; None where it cannot be used."""
        return {one.subject.name: one.seconds for one in self.measured if one.tuning == tuning}


def tune(
    spec: KernelSpec,
    generations: Iterable[str],
    subjects: Search,
    *,
    candidates: Sequence[Tuning],
    timer: Callable[[Sequence[Subject]], list[float | None]] | None = None,
    timed_generation: str | None = None,
) -> list[Tuned]:
    """The best of `candidates` for each generation.

    subjects           the calls to judge by, for a generation
    timer              times calls on the TPU of this machine, which is a `timed_generation`; the other generations
                       are judged by the estimate

    A generation that is not known is left with the spec's default, and one line in the log says so. A candidate that
    runs out of VMEM is not used. Raises CompileError where the compiler cannot be started.
    """
    results = []
    for generation in generations:
        if generation not in CHIPS:
            logger.warning("%s: the TPU generation %r is not known; it keeps the default tuning", spec.name, generation)
            results.append(Tuned(generation, spec.tuning(), 0.0, (), "estimate", "unknown generation: default kept"))
            continue
        calls = [Call(subject, candidate) for subject in subjects(generation) for candidate in candidates]
        if timer is not None and generation == timed_generation:
            results.append(choose(generation, _timed(calls, timer), candidates, "TPU"))
        else:
            results.append(choose(generation, _estimated(calls, generation), candidates, "estimate"))
    return results


def with_tuning(subject: Subject, tuning: Tuning) -> Subject:
    """The same call, with other keyword arguments for the kernel."""
    job: AotJob = replace(subject.job, keywords={**subject.job.keywords, **tuning})
    return replace(subject, job=job)


def _timed(calls: Sequence[Call], timer: Callable[[Sequence[Subject]], list[float | None]]) -> list[Measured]:
    times = timer([call.tuned for call in calls])
    return [
        Measured(call.subject, call.tuning, seconds, "" if seconds else "it did not run")
        for call, seconds in zip(calls, times, strict=True)
    ]


def _estimated(calls: Sequence[Call], generation: str) -> list[Measured]:
    tuned = [call.tuned for call in calls]
    compiled = schedule_jobs([one.job for one in tuned], generation, values=[one.values for one in tuned])
    room = VMEM_SHARE * CHIPS[generation].vmem_bytes
    measured = []
    for call, scheduled in zip(calls, compiled, strict=True):
        why_not = scheduled.error or ""
        if scheduled.vmem_bytes > room:
            why_not = f"its arrays take {scheduled.vmem_bytes / 2**20:.0f} of {room / 2**20:.0f} MiB of VMEM"
        seconds = None if why_not else scheduled.cost().seconds
        measured.append(Measured(call.subject, call.tuning, seconds, why_not))
    return measured


def choose(generation: str, measured: Sequence[Measured], candidates: Sequence[Tuning], by: str) -> Tuned:
    """The candidate with the shortest times over all cases, where it is safe and worth it.

    Where the kernel's own sizes cannot be used, the fastest candidate that can is taken.
    """
    usable: list[tuple[Tuning, list[float]]] = []
    rejected: dict[str, str] = {}
    for candidate in candidates:
        own = [one for one in measured if one.tuning == candidate]
        bad = next((one for one in own if one.seconds is None), None)
        if bad is None:
            usable.append((candidate, [one.seconds for one in own if one.seconds]))
        else:
            rejected[describe(candidate)] = f"{bad.subject.name}: {bad.why_not}"
            logger.info("%s cannot be used on %s: %s", describe(candidate), generation, rejected[describe(candidate)])
    best, gain = _fastest(usable)
    return Tuned(generation, best, gain, tuple(measured), by, rejected=rejected)


def _fastest(usable: Sequence[tuple[Tuning, list[float]]]) -> tuple[Tuning, float]:
    """The best of the candidates with their times, and its gain on the kernel's own sizes."""
    base = next((times for candidate, times in usable if candidate == OWN_SIZES), None)
    if base is None:
        fastest = min(usable, key=lambda one: _geometric_mean(one[1]), default=(OWN_SIZES, []))
        return fastest[0], 0.0
    best, gain = OWN_SIZES, 0.0
    for candidate, times in usable:
        speedups = [before / after for before, after in zip(base, times, strict=True)]
        mean = _geometric_mean(speedups) - 1
        if mean >= max(gain, LEAST_GAIN) and min(speedups) >= 1 / (1 + WORST_LOSS):
            best, gain = candidate, mean
    return best, gain


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def describe(tuning: Tuning) -> str:
    """ "block_k 512", or "the kernel's own sizes"."""
    return ", ".join(f"{name} {value}" for name, value in tuning.items()) or "the kernel's own sizes"

"""What `tpu-kernels tune` does: choose the calls, search, show, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.lab.cost.compare import spec_subjects
from tpu_kernels.lab.cost.subject import Subject
from tpu_kernels.lab.kernel_cases import chosen_cases
from tpu_kernels.lab.tune.candidates import OWN_SIZES, spec_candidates
from tpu_kernels.lab.tune.search import Search, Tuned, describe, tune
from tpu_kernels.lab.tune.timing import local_generation, time_on_tpu
from tpu_kernels.lab.tune.yaml_edit import write_tuning
from tpu_kernels.ops.attention.cases import AttentionCase
from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.catalog import resized
from tpu_kernels.registry import find_spec, load_registry
from tpu_kernels.specs import KernelSpec

SHARES: Final = (0.125, 0.5, 1.0)
"""Parts of the cache that are in use in the calls by which a decode step is judged."""


def tune_spec(
    subject: str, generations: Sequence[str], cases: Sequence[str], **sizes: int | None
) -> tuple[KernelSpec, list[Tuned]]:
    """The spec of that name or file, and what the search finds for each generation. `sizes` as in `calls`.

    Raises ValueError for an unknown case or size, KernelLoadError for a kernel whose source is not here, and as `tune`
    does.
    """
    spec = find_spec(subject) or load_registry().get(subject)
    untuned = spec.model_copy(update={"tune": {}})
    here = local_generation()
    timer = time_on_tpu if here is not None else None
    search = calls(untuned, cases, **sizes)
    candidates = spec_candidates(untuned)
    return spec, tune(spec, generations, search, candidates=candidates, timer=timer, timed_generation=here)


def calls(spec: KernelSpec, cases: Sequence[str], **sizes: int | None) -> Search:
    """The calls to judge by, in the sizes that are given (as `catalog.resized` has them).

    A decode step of attention is there at a few lengths, a prefill chunk at the end of the cache.
    """

    def subjects(generation: str) -> list[Subject]:
        sized = [resized(case, **sizes) for case in chosen_cases(spec, cases)]
        return spec_subjects(spec, [one for case in sized for one in _at_lengths(case)], generation)

    return subjects


def _at_lengths(case: OpCase) -> list[OpCase]:
    if not isinstance(case, AttentionCase):
        return [case]
    whole = case.shape.length
    lengths = [int(whole * share) for share in SHARES] if case.shape.is_decode else [whole]
    return [replace(case, name=f"{case.name} {length}", length=length) for length in lengths]


def write(spec: KernelSpec, results: Sequence[Tuned]) -> Path:
    """Writes the tunings that are better than the kernel's own sizes into the spec's file; returns it.

    A generation for which nothing is better loses what the file had for it.
    """
    if spec.file is None:
        raise SpecError(explain(f"`{spec.name}` has no file to write its tuning to.", needs="a spec read from YAML"))
    write_tuning(spec.file, {one.generation: dict(one.best) for one in results if one.measured})
    return spec.file


def print_tuned(results: Sequence[Tuned], console: Console) -> None:
    """For each generation the times of every candidate on every call, and what was chosen."""
    for one in results:
        if not one.measured:
            console.print(f"{one.generation}: {one.note}")
            continue
        candidates = list(dict.fromkeys(describe(measured.tuning) for measured in one.measured))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{one.generation}, us by {one.by}")
        table.title_justify = "left"
        table.add_column("call", no_wrap=True)
        for candidate in candidates:
            table.add_column(candidate.replace(" ", "\n", 1), justify="right")
        by_call: dict[str, list[str]] = {}
        for measured in one.measured:
            text = "-" if measured.seconds is None else f"{1e6 * measured.seconds:.3g}"
            by_call.setdefault(measured.subject.name, []).append(text)
        for name, times in by_call.items():
            table.add_row(name, *times)
        console.print(table)
        for name, why in one.rejected.items():
            console.print(f"{name}: {why}")
        gain = f", {100 * one.gain:.1f} % faster" if one.best != OWN_SIZES else ": nothing is better by 2 %"
        console.print(f"{one.generation}: {describe(one.best)}{gain}\n")

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
from tpu_kernels.lab.cost.compare import chosen_cases, spec_subjects
from tpu_kernels.lab.cost.subject import Subject
from tpu_kernels.lab.tune.search import OWN_SIZES, Search, Tuned, describe, tune
from tpu_kernels.lab.tune.timing import local_generation, time_on_tpu
from tpu_kernels.lab.tune.yaml_edit import write_tuning
from tpu_kernels.registry import find_spec, load_registry
from tpu_kernels.specs import KernelSpec

SHARES: Final = (0.125, 0.5, 1.0)
"""Parts of the cache that are in use in the calls by which a decode step is judged."""


def tune_spec(
    subject: str, generations: Sequence[str], cases: Sequence[str], *, batch: int | None, max_len: int | None
) -> tuple[KernelSpec, list[Tuned]]:
    """The spec of that name or file, and what the search finds for each generation.

    Raises ValueError for an unknown case, and as `tune` does.
    """
    spec = find_spec(subject) or load_registry().get(subject)
    untuned = spec.model_copy(update={"tune": {}})
    here = local_generation()
    timer = time_on_tpu if here is not None else None
    search = calls(untuned, cases, batch=batch, max_len=max_len)
    return spec, tune(spec, generations, search, timer=timer, timed_generation=here)


def calls(spec: KernelSpec, cases: Sequence[str], *, batch: int | None = None, max_len: int | None = None) -> Search:
    """The calls to judge by: each decode step at a few lengths, each prefill chunk at the end of the cache."""

    def subjects(generation: str) -> list[Subject]:
        found: list[Subject] = []
        for case in chosen_cases(cases):
            whole = max_len or case.shape.length
            lengths = [int(whole * share) for share in SHARES] if case.shape.is_decode else [whole]
            for length in lengths:
                (subject,) = spec_subjects(spec, [case], generation, batch=batch, max_len=max_len, length=length)
                found.append(replace(subject, name=f"{subject.name} {length}"))
        return found

    return subjects


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

"""The costs of a kernel's cases as a table for the terminal, a page, pictures and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from tpu_kernels.lab.cost.compare import Comparison
from tpu_kernels.lab.cost.page import Cell, Section, Share, render_page
from tpu_kernels.lab.cost.plot import Timed, save_figure, svg
from tpu_kernels.specs import KernelSpec

_COSTS: Final = ("case", "batch", "length", "kernel us", "XLA us", "ratio", "limit us", "limit by", "reached", "MB")
_SCHEDULE: Final = (
    "case", "steps", "cycles a step", "waits", "MXU", "XLU", "VPU", "EUP", "load", "store", "spills",
)  # fmt: skip
_UNITS: Final = (("MATMUL", "MATPUSH"), ("XLU",), ("VALU",), ("EUP",), ("VLOAD",), ("VSTORE",))
_COSTS_NOTE: Final = (
    "limit: the larger of the time to move what the op must move at 90 % of the HBM bandwidth and the time of the "
    "matrix unit. XLA: the op's plain torch reference, which computes in float32 and over the whole cache. "
    "ratio: XLA's time over the kernel's."
)
_SCHEDULE_NOTE: Final = (
    "steps: turns of the innermost loop that takes most of the time. waits: share of the cycles without a bundle, "
    "because data had not arrived. units: share of their slots that is filled in the other cycles. spills: slots that "
    "vector registers written to VMEM for want of room take, in the whole call."
)


def print_costs(spec: KernelSpec, comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Two tables for each generation: times, and how they are spent. A kernel that does not compile has its reason."""
    console = console or Console(highlight=False)
    console.print(f"{spec.name}: estimates from schedules, nothing was timed\n")
    for generation, own in _by_generation(comparisons).items():
        print_table(console, f"{generation}: costs", _COSTS, [_cost_row(one) for one in own])
        print_table(console, f"{generation}: schedule", _SCHEDULE, [_schedule_row(one) for one in own if one.kernel])
        for one in own:
            for warning in _warnings(one):
                console.print(f"{one.subject.name} on {generation}: {warning}\n")
    console.print(f"{_COSTS_NOTE}\n{_SCHEDULE_NOTE}", style="dim")


def _by_generation(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.generation, []).append(comparison)
    return groups


def _warnings(comparison: Comparison) -> Iterator[str]:
    kernel = comparison.kernel
    if comparison.error:
        yield comparison.error
    if kernel is not None and kernel.unknown_branches:
        yield f"{kernel.unknown_branches} branches of the kernel were guessed, so its figures may be far off"
    if kernel is not None and not kernel.complete:
        yield "the simulation was given up before the kernel's end, so its time is longer"


def print_table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """A table whose first column, and those of words, stand on the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, title=title)
    table.title_justify = "left"
    for number, column in enumerate(columns):
        left = number == 0 or any(isinstance(row[number], str) for row in rows)
        table.add_column(column.replace(" ", "\n", 1), justify="left" if left else "right", no_wrap=left)
    for row in rows:
        table.add_row(*map(_plain, row))
    console.print(table)


def as_json(comparisons: Iterable[Comparison]) -> str:
    """A list with an object for each case and generation."""
    return json.dumps([comparison.as_dict() for comparison in comparisons], indent=1)


def timed(comparisons: Iterable[Comparison]) -> list[Timed]:
    """The costs as pictures show them."""
    return [
        Timed(
            label=comparison.subject.name,
            generation=comparison.generation,
            flops=comparison.subject.needed_flops,
            kernel_seconds=None if (kernel := comparison.kernel) is None else kernel.seconds,
            kernel_bytes=0 if kernel is None else kernel.read_bytes + kernel.written_bytes,
            xla_seconds=None if comparison.xla is None else comparison.xla.seconds,
            xla_bytes=0 if comparison.xla is None else comparison.xla.hbm_bytes,
            limit_seconds=None if kernel is None else kernel.limit,
        )
        for comparison in comparisons
    ]


def write_plot(comparisons: Sequence[Comparison], path: Path) -> None:
    """Roofline and bars, in the format of the suffix of `path`."""
    save_figure(timed(comparisons), path)


def write_page(spec: KernelSpec, comparisons: Sequence[Comparison], path: Path) -> None:
    """One self-contained page: what the kernel replaces, its costs, how its time is spent, the roofline."""
    requires = spec.requires
    facts = {
        "kernel": f"{spec.source}, {spec.entry}",
        "replaces": f"{spec.op} layers" + (f" of {', '.join(spec.match.classes)}" if spec.match.classes else ""),
        "covers": ", ".join((*requires.dtypes, *requires.features)),
        "generations": ", ".join(requires.generations or ()) or "any",
        "spec": spec.origin,
    }
    sections = []
    for generation, own in _by_generation(comparisons).items():
        costs, schedule = [_cost_row(one) for one in own], [_schedule_row(one) for one in own if one.kernel]
        sections.append(Section(f"{generation}: costs", _COSTS, costs, _COSTS_NOTE))
        sections.append(Section(f"{generation}: schedule", _SCHEDULE, schedule, _SCHEDULE_NOTE))
    lead = spec.description.strip()
    path.write_text(render_page(spec.name, lead, facts, sections, svg(timed(comparisons))))


def _cost_row(comparison: Comparison) -> tuple[Cell, ...]:
    sizes, kernel, xla = comparison.subject.sizes, comparison.kernel, comparison.xla
    head: tuple[Cell, ...] = (comparison.subject.name, sizes["batch"], sizes["length"])
    xla_us = None if xla is None else 1e6 * xla.seconds
    if kernel is None:
        return (*head, None, xla_us, None, None, None, None, None)
    moved = (kernel.read_bytes + kernel.written_bytes) / 1e6
    limit = (1e6 * kernel.limit, kernel.limited_by, Share(kernel.share_of_limit))
    return (*head, 1e6 * kernel.seconds, xla_us, comparison.ratio, *limit, moved)


def _schedule_row(comparison: Comparison) -> tuple[Cell, ...]:
    kernel = comparison.kernel
    if kernel is None:
        return (comparison.subject.name, *(None for _ in _SCHEDULE[1:]))
    waits = kernel.stalled_cycles / (kernel.stalled_cycles + kernel.busy_cycles)
    filled = (Share(max(kernel.utilization.get(name, 0.0) for name in unit)) for unit in _UNITS)
    cycles = round(kernel.step_cycles)
    return (comparison.subject.name, kernel.steps, cycles, Share(waits), *filled, kernel.spilled_slots)


def _plain(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case Share(value=value):
            return f"{100 * value:.0f}%"
        case float():
            return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
        case _:
            return str(cell)

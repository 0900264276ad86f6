"""The costs of kernels on their cases as tables for the terminal, a page, pictures and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from tpu_kernels.lab.cost.compare import XLA, Comparison
from tpu_kernels.lab.cost.page import Cell, Section, Share, render_page
from tpu_kernels.lab.cost.plot import Timed, save_figure, svg
from tpu_kernels.specs import KernelSpec

KernelCosts = tuple[KernelSpec, Sequence[Comparison]]
"""A kernel, and its costs on some cases."""

_SIZES: Final = (("batch", "length"), ("tokens",))
"""Sizes that stand in the table: of the first of these that the calls have. The case says the others."""
_LIMITS: Final = ("ratio", "limit us", "limit by", "reached", "MB")
_SCHEDULE: Final = (
    "case", "steps", "cycles a step", "waits", "MXU", "XLU", "VPU", "EUP", "load", "store", "spills",
)  # fmt: skip
_UNITS: Final = (("MATMUL", "MATPUSH"), ("XLU",), ("VALU",), ("EUP",), ("VLOAD",), ("VSTORE",))
_COSTS_NOTE: Final = (
    "limit: the larger of the time to move what the op must move at 90 % of the HBM bandwidth and the time of the "
    "matrix unit. XLA: the op's plain torch reference (that of attention computes in float32 and over the whole "
    "cache); columns behind it: other torch functions for the same call. ratio: the shortest of these times over the "
    "kernel's."
)
_SCHEDULE_NOTE: Final = (
    "steps: turns of the innermost loop that takes most of the time. waits: share of the cycles without a bundle, "
    "because data had not arrived. units: share of their slots that is filled in the other cycles. spills: slots that "
    "vector registers written to VMEM for want of room take, in the whole call."
)


def print_costs(kernels: Iterable[KernelCosts], console: Console) -> None:
    """For each kernel and generation two tables: times, and how they are spent; then why a case has none."""
    for spec, comparisons in kernels:
        console.print(f"{spec.name}: estimates from schedules, nothing was timed\n")
        for section in _sections(comparisons):
            print_table(console, section.title, section.columns, section.rows)
        for one in comparisons:
            for warning in _warnings(one):
                console.print(f"{one.subject.name} on {one.generation}: {warning}\n")


def print_notes(console: Console) -> None:
    """What the columns of the tables say."""
    console.print(f"{_COSTS_NOTE}\n{_SCHEDULE_NOTE}", style="dim")


def _sections(comparisons: Sequence[Comparison], of: str = "") -> list[Section]:
    """The two tables of each generation; `of` stands before the titles."""
    sections = []
    for generation, own in _by_generation(comparisons).items():
        columns, costs = _costs_table(own)
        sections.append(Section(f"{of}{generation}: costs", columns, costs, _COSTS_NOTE))
        schedule = [_schedule_row(one) for one in own if one.kernel]
        sections.append(Section(f"{of}{generation}: schedule", _SCHEDULE, schedule, _SCHEDULE_NOTE))
    return sections


def _by_generation(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.generation, []).append(comparison)
    return groups


def _warnings(comparison: Comparison) -> Iterator[str]:
    kernel = comparison.kernel
    if comparison.error:
        yield comparison.error
    for label, why in comparison.plain.refused.items():
        yield f"{label}: {why}"
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


def as_json(kernels: Iterable[KernelCosts]) -> str:
    """A list with an object for each kernel, case and generation."""
    return json.dumps(
        [
            {"spec": spec.name, "op": spec.op, **comparison.as_dict()}
            for spec, comparisons in kernels
            for comparison in comparisons
        ],
        indent=1,
    )


def timed(kernels: Sequence[KernelCosts]) -> list[Timed]:
    """The costs as pictures show them, each beside its fastest baseline."""
    return [
        Timed(
            label=comparison.subject.name if len(kernels) == 1 else f"{spec.name} {comparison.subject.name}",
            generation=comparison.generation,
            flops=comparison.subject.needed_flops,
            kernel_seconds=None if (kernel := comparison.kernel) is None else kernel.seconds,
            kernel_bytes=0 if kernel is None else kernel.read_bytes + kernel.written_bytes,
            xla_seconds=None if (best := comparison.best) is None else best.seconds,
            xla_bytes=0 if best is None else best.hbm_bytes,
            limit_seconds=None if kernel is None else kernel.limit,
        )
        for spec, comparisons in kernels
        for comparison in comparisons
    ]


def write_plot(kernels: Sequence[KernelCosts], path: Path) -> None:
    """Roofline and bars, in the format of the suffix of `path`."""
    save_figure(timed(kernels), path)


def write_page(kernels: Sequence[KernelCosts], path: Path) -> None:
    """One self-contained page: for each kernel what it replaces, its costs and how its time is spent; the roofline."""
    figure = svg(timed(kernels))
    if len(kernels) == 1:
        ((spec, comparisons),) = kernels
        page = render_page(spec.name, spec.description.strip(), _facts(spec), _sections(comparisons), figure)
    else:
        facts = {spec.name: " ".join(spec.description.split()) for spec, _ in kernels}
        sections = [section for spec, comparisons in kernels for section in _sections(comparisons, f"{spec.name} on ")]
        page = render_page("Kernels", "What each bundled kernel costs, beside XLA.", facts, sections, figure)
    path.write_text(page)


def _facts(spec: KernelSpec) -> dict[str, str]:
    requires = spec.requires
    return {
        "kernel": f"{spec.source}, {spec.entry}",
        "replaces": f"{spec.op} layers" + (f" of {', '.join(spec.match.classes)}" if spec.match.classes else ""),
        "covers": ", ".join((*requires.dtypes, *requires.features)),
        "generations": ", ".join(requires.generations or ()) or "any",
        "spec": spec.origin,
    }


def _costs_table(comparisons: Sequence[Comparison]) -> tuple[tuple[str, ...], list[Sequence[Cell]]]:
    """Columns and rows. A baseline has a column if one of the calls has it."""
    sizes = next((some for some in _SIZES if all(set(some) <= set(one.subject.sizes) for one in comparisons)), ())
    labels = list(dict.fromkeys((XLA, *(label for one in comparisons for label in one.plain.costs))))
    times = (f"{label.replace('_', ' ')} us" for label in labels)
    return ("case", *sizes, "kernel us", *times, *_LIMITS), [_cost_row(one, sizes, labels) for one in comparisons]


def _cost_row(comparison: Comparison, sizes: Sequence[str], labels: Sequence[str]) -> tuple[Cell, ...]:
    kernel = comparison.kernel
    head: tuple[Cell, ...] = (comparison.subject.name, *(comparison.subject.sizes[size] for size in sizes))
    plain = tuple(
        None if (cost := comparison.plain.costs.get(label)) is None else 1e6 * cost.seconds for label in labels
    )
    if kernel is None:
        return (*head, None, *plain, *(None for _ in _LIMITS))
    moved = (kernel.read_bytes + kernel.written_bytes) / 1e6
    limit = (1e6 * kernel.limit, kernel.limited_by, Share(kernel.share_of_limit))
    return (*head, 1e6 * kernel.seconds, *plain, comparison.ratio, *limit, moved)


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

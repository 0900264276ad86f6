"""The cost of a model's decode step as a table for the terminal, JSON, a picture and a page."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from tpu_kernels.lab.cost.model_cost import ModelCost
from tpu_kernels.lab.cost.model_groups import GROUPS
from tpu_kernels.lab.cost.page import Cell, Section, render_page
from tpu_kernels.lab.cost.plot import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS: Final = ("TPU", "flow", "us a token", "MB a token", *(f"{name} {unit}" for name in GROUPS for unit in ("us", "MB")))
_COLORS: Final = ("#1a73e8", "#d93025", "#f9ab00", "#188038", "#9aa0a6")
_NOTE: Final = (
    "Estimates from the compiler's schedules; nothing was timed. A wait for a copy counts for what was copied. What the "
    "runtime does between programs is not in it."
)


@dataclass(frozen=True)
class ModelReport:
    """The decode step of one model, for each flow and TPU."""

    model: str
    costs: tuple[ModelCost, ...]

    def show(self, console: Console) -> None:
        """A table for each TPU: a row for each group, a pair of columns for each flow."""
        first = self.costs[0]
        console.print(
            f"{self.model}: one decoded token, batch {first.case.batch}, {first.length} of {first.case.max_len}"
            f" positions in use, {first.case.dtype}"
        )
        for topology, own in self._by_topology():
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=topology)
            table.title_justify = "left"
            table.add_column("")
            done = [cost for cost in own if cost.error is None]
            for cost in done:
                table.add_column(f"{cost.case.flow}\nus", justify="right")
                table.add_column("\nMB", justify="right")
            for name in GROUPS:
                cells = ((cost.groups[name].seconds, cost.groups[name].hbm_bytes) for cost in done)
                table.add_row(name, *(text for pair in cells for text in _figures(*pair)))
            table.add_section()
            table.add_row("all", *(text for cost in done for text in _figures(cost.seconds, cost.hbm_bytes)))
            if done:
                console.print(table)
            for cost in own:
                if cost.error is not None:
                    console.print(f"{topology}, {cost.case.flow}: {cost.error}\n", soft_wrap=True)
        console.print(_NOTE, style="dim")

    def _by_topology(self) -> Iterator[tuple[str, list[ModelCost]]]:
        for topology in dict.fromkeys(cost.target.topology for cost in self.costs):
            yield topology, [cost for cost in self.costs if cost.target.topology == topology]

    def json(self) -> str:
        """A list with an object for each flow and TPU."""
        return json.dumps([cost.as_dict() for cost in self.costs], indent=1)

    def plot(self, path: Path) -> None:
        """Stacked bars of the times, in the format of the suffix of `path`. StackError without matplotlib."""
        self._figure().savefig(path, dpi=150)

    def page(self, path: Path) -> None:
        """One self-contained page with the figures and the picture. StackError without matplotlib."""
        buffer = io.StringIO()
        self._figure().savefig(buffer, format="svg")
        svg = buffer.getvalue()
        first = self.costs[0]
        facts = {
            "batch": str(first.case.batch),
            "cache": f"{first.length} of {first.case.max_len} positions in use",
            "dtype": first.case.dtype,
        }
        section = Section("One decoded token", _COLUMNS, [_row(cost) for cost in self.costs], _NOTE)
        path.write_text(render_page(self.model, "What one decoded token costs.", facts, [section], svg[svg.index("<svg") :]))

    def _figure(self) -> Figure:
        done = [cost for cost in self.costs if cost.error is None]
        figure = new_figure(figsize=(8, 1.2 + 0.5 * max(len(done), 1)))
        axes: Any = figure.subplots()
        labels = [f"{cost.target.topology} {cost.case.flow}" for cost in done]
        left = [0.0] * len(done)
        for name, color in zip(GROUPS, _COLORS, strict=True):
            widths = [1e6 * cost.groups[name].seconds for cost in done]
            axes.barh(labels, widths, left=left, color=color, label=name)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("us a token, estimated")
        figure.legend(loc="outside lower center", ncols=len(GROUPS), frameon=False)
        return figure


def _figures(seconds: float, hbm_bytes: int) -> tuple[str, str]:
    return f"{1e6 * seconds:,.1f}", f"{hbm_bytes / 1e6:,.1f}"


def _row(cost: ModelCost) -> Sequence[Cell]:
    if cost.error is not None:
        return cost.target.topology, cost.case.flow, cost.error, *[None] * (len(_COLUMNS) - 3)
    parts: list[Cell] = []
    for name in GROUPS:
        parts += [1e6 * cost.groups[name].seconds, cost.groups[name].hbm_bytes / 1e6]
    return cost.target.topology, cost.case.flow, 1e6 * cost.seconds, cost.hbm_bytes / 1e6, *parts

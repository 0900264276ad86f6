"""The costs of a model's decode step as tables, a page, a picture and JSON: with tpu-kernels beside plain."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from tpu_kernels.lab.cost.model_cost import GroupCost, ModelCost
from tpu_kernels.lab.cost.model_groups import GROUPS
from tpu_kernels.lab.cost.page import Cell, Section, render_page
from tpu_kernels.lab.cost.plot import new_figure
from tpu_kernels.lab.cost.report import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS: Final = ("#1a73e8", "#e8710a", "#188038", "#a142f4", "#12a4af", "#f538a0", "#d93025", "#f9ab00", "#9aa0a6")
_NOTE: Final = (
    "One decoded token: bytes moved from and to HBM, and the time that the operations add. Copies that run beside "
    "others cost bytes and no time; the total is never less than all bytes take. What runs between the programs of two "
    "tokens is not in it."
)


@dataclass(frozen=True)
class ModelReport:
    """The costs of one model's decode step, for each target and flow; at least one."""

    model: str
    costs: Sequence[ModelCost]

    def show(self, console: Console) -> None:
        """A table for each target, and the reason for each step that has no program."""
        first = self.costs[0]
        over = f" on each of {first.case.tp_size} chips" if first.case.tp_size > 1 else ""
        console.print(
            f"{self.model}: one decode step{over} in {first.case.dtype}, batch {first.case.batch}, "
            f"{first.length} of {first.case.max_len} positions in use; estimates, nothing was timed\n"
        )
        for section in self._sections():
            print_table(console, section.title, section.columns, section.rows)
        for cost in self.costs:
            if cost.error:
                console.print(f"{cost.case.flow} on {cost.target.name}: {cost.error}\n", soft_wrap=True)
        for cost in self.costs:
            if cost.collectives:
                console.print(f"{cost.case.flow} on {cost.target.name}: {collectives_of(cost)}", soft_wrap=True)
        for flow, note in self._notes().items():
            console.print(f"{flow}: {note}", soft_wrap=True)
        console.print(_NOTE, style="dim")

    def json(self) -> str:
        """A list with an object for each target and flow."""
        return json.dumps([cost.as_dict() for cost in self.costs], indent=1)

    def plot(self, path: Path) -> None:
        """Bars of bytes by what they are for, in the format of the suffix of `path`. StackError without matplotlib."""
        self._figure().savefig(path, dpi=150)

    def page(self, path: Path) -> None:
        """One self-contained page: what was swapped, the bars, a table for each target."""
        first = self.costs[0]
        facts = {
            "batch": str(first.case.batch),
            "cache": f"{first.length:,} of {first.case.max_len:,} positions in use",
            "dtype": first.case.dtype,
            **({"chips": str(first.case.tp_size)} if first.case.tp_size > 1 else {}),
            **self._notes(),
        }
        picture = io.StringIO()
        self._figure().savefig(picture, format="svg", metadata={"Date": None})
        svg = picture.getvalue()
        path.write_text(render_page(self.model, _NOTE, facts, self._sections(), svg[svg.index("<svg") :]))

    def _notes(self) -> dict[str, str]:
        """What the capture says of each flow: which kernels its layers took."""
        return {cost.case.flow: cost.note for cost in self.costs if cost.note}

    def _sections(self) -> list[Section]:
        sections = []
        for target in dict.fromkeys(cost.target.name for cost in self.costs):
            own = [cost for cost in self.costs if cost.target.name == target and not cost.error]
            if own:
                columns = ["part", *(f"{cost.case.flow} {unit}" for cost in own for unit in ("MB", "us"))]
                rows: list[Sequence[Cell]] = [
                    [name, *(cell for cost in own for cell in _cells(cost.groups[name]))]
                    for name in GROUPS
                    if any(cost.groups[name].hbm_bytes or cost.groups[name].seconds for cost in own)
                ]
                total = [value for cost in own for value in (cost.hbm_bytes / 1e6, 1e6 * cost.seconds)]
                sections.append(Section(target, columns, [*rows, ["total", *total]]))
        return sections

    def _figure(self) -> Figure:
        done = [cost for cost in self.costs if not cost.error]
        figure = new_figure((9, 1.2 + 0.55 * max(len(done), 1)))
        axes: Any = figure.subplots()
        rows = list(range(len(done)))
        starts = [0.0] * len(done)
        for name, color in zip(GROUPS, _COLORS, strict=True):
            widths = [cost.groups[name].hbm_bytes / 1e6 for cost in done]
            axes.barh(rows, widths, 0.7, left=starts, label=name, color=color)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        for row, cost in enumerate(done):
            axes.text(starts[row], row, f" {1e6 * cost.seconds:,.0f} us", va="center", fontsize=9)
        axes.set_yticks(rows, [f"{cost.target.name}\n{cost.case.flow}" for cost in done], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("MB moved from and to HBM for one token, and the time")
        figure.legend(loc="outside lower center", ncols=len(GROUPS), frameon=False, fontsize=9, columnspacing=1)
        return figure


def collectives_of(cost: ModelCost) -> str:
    """What the chips say to each other in a step, and what the step would take if that took no time."""
    parts = [
        f"{one.count} x {one.collective.kind} of {one.collective.bytes:,} bytes, {1e6 * one.seconds:.1f} us each"
        for one in cost.collectives
    ]
    return f"{'; '.join(parts)}. If they took no time, the step would take {1e6 * cost.seconds_apart:,.0f} us."


def _cells(group: GroupCost) -> tuple[float, float]:
    return group.hbm_bytes / 1e6, 1e6 * group.seconds

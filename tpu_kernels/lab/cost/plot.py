"""Pictures of costs: a roofline for each generation, and bars of the times. matplotlib, without a display."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpu_kernels.chips import ChipInfo
from tpu_kernels.errors import StackError, explain
from tpu_kernels.lab.cost.timing import hbm_bandwidth
from tpu_kernels.lab.targets import target_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KERNEL_COLOR: Final = "#1a73e8"
XLA_COLOR: Final = "#9aa0a6"
LIMIT_COLOR: Final = "#d93025"


@dataclass(frozen=True)
class Timed:
    """One call on one generation, as a picture shows it; seconds, bytes and FLOPs. None where there is no figure."""

    label: str
    generation: str
    flops: int
    kernel_seconds: float | None
    kernel_bytes: int
    xla_seconds: float | None
    xla_bytes: int
    limit_seconds: float | None = None


def cost_figure(calls: Sequence[Timed]) -> Figure:
    """Above the rooflines, a panel for each generation; below the times of kernel and XLA, and the limit.

    StackError if matplotlib is not installed.
    """
    generations = list(dict.fromkeys(call.generation for call in calls))
    labels = list(dict.fromkeys(call.label for call in calls))
    bars = max(4.0, 0.3 * len(labels))
    figure = new_figure((4.2 * max(len(generations), 2), 4.2 + bars))
    panels: Any = figure.subplots(2, len(generations), squeeze=False, height_ratios=(4.0, bars))
    for column, generation in enumerate(generations):
        own = [call for call in calls if call.generation == generation]
        _roofline(panels[0][column], target_of(generation).chip, own)
        _bars(panels[1][column], labels, own)
    handles, names = panels[1][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def save_figure(calls: Sequence[Timed], path: Path) -> None:
    """Writes the figure to `path`, in the format of its suffix (png, svg, pdf). StackError without matplotlib."""
    cost_figure(calls).savefig(path, dpi=150)


def svg(calls: Sequence[Timed]) -> str:
    """The figure as an `<svg>` element, to stand in a page."""
    text = io.StringIO()
    cost_figure(calls).savefig(text, format="svg", metadata={"Date": None})
    picture = text.getvalue()
    return picture[picture.index("<svg") :]


def _roofline(axes: Axes, chip: ChipInfo, calls: Sequence[Timed]) -> None:
    bandwidth, peak = hbm_bandwidth(chip), chip.peak_bf16_flops
    ridge = peak / bandwidth
    points = [
        (call.flops / moved, call.flops / seconds, color, marker)
        for call in calls
        if call.flops  # an op without matrix products has no place on a roofline
        for seconds, moved, color, marker in _series(call)
    ]
    low, high = (min((point[0] for point in points), default=1.0), max((point[0] for point in points), default=1.0))
    left, right = min(low, ridge) / 4, max(high, ridge) * 4
    axes.plot([left, ridge, right], [left * bandwidth, peak, peak], color=LIMIT_COLOR, linewidth=1)
    for intensity, reached, color, marker in points:
        axes.plot(intensity, reached, marker, color=color, markersize=6, alpha=0.85)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{chip.name}: roofline (90 % of HBM, bf16 peak)", fontsize=10)
    axes.set_xlabel("FLOP per byte moved")
    axes.set_ylabel("FLOP/s")
    axes.grid(visible=True, which="major", alpha=0.25)


def _series(call: Timed) -> Iterator[tuple[float, int, str, str]]:
    if call.kernel_seconds and call.kernel_bytes:
        yield call.kernel_seconds, call.kernel_bytes, KERNEL_COLOR, "o"
    if call.xla_seconds and call.xla_bytes:
        yield call.xla_seconds, call.xla_bytes, XLA_COLOR, "s"


def _bars(axes: Axes, labels: Sequence[str], calls: Sequence[Timed]) -> None:
    by_label = {call.label: call for call in calls}
    rows = list(range(len(labels)))
    shown = [by_label.get(label) for label in labels]
    kernel = [1e6 * (call.kernel_seconds or 0) if call else 0 for call in shown]
    xla = [1e6 * (call.xla_seconds or 0) if call else 0 for call in shown]
    axes.barh([row + 0.2 for row in rows], xla, 0.38, color=XLA_COLOR, label="XLA")
    axes.barh([row - 0.2 for row in rows], kernel, 0.38, color=KERNEL_COLOR, label="kernel")
    limits = [(row, 1e6 * call.limit_seconds) for row, call in enumerate(shown) if call and call.limit_seconds]
    axes.plot(
        [limit for _, limit in limits],
        [row - 0.2 for row, _ in limits],
        "|",
        color=LIMIT_COLOR,
        markersize=14,
        markeredgewidth=2,
        label="limit",
    )
    axes.set_yticks(rows, labels, fontsize=8)
    axes.invert_yaxis()
    if times := [time for time in (*kernel, *xla, *(limit for limit, _ in limits)) if time]:
        axes.set_xscale("log")
        axes.set_xlim(left=min(times) / 3)
    axes.set_xlabel("microseconds")
    axes.grid(visible=True, axis="x", which="major", alpha=0.25)


def new_figure(figsize: tuple[float, float]) -> Figure:
    """An empty figure of that size in inches, which needs no display. StackError if matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StackError(
            explain(
                "Pictures of costs need matplotlib.",
                got=str(error),
                next_step="pip install 'tpu-kernels[emulator]'",
            )
        ) from error
    return Figure(figsize=figsize, layout="constrained")

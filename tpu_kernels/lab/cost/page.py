"""One self-contained HTML page about costs: no scripts, no fonts, no pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Final

from tpu_kernels import __version__

_PAGE: Final = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; --line: #dadce0; --soft: #f8f9fa; --text: #202124; --dim: #5f6368; --mark: #1a73e8; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); }
body { max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.lead, p.note, footer { color: var(--dim); } p.note { font-size: .87rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; }
dt { color: var(--dim); } dd { margin: 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { background: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td .bar { display: block; height: .3rem; border-radius: .15rem; background: var(--mark); margin-top: .15rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem; font-size: .8rem; }
</style></head>
<body>
<h1>$title</h1>
<p class="lead">$lead</p>
$body
<footer>tpu-kernels $version. Static estimates from the schedules of libtpu's ahead-of-time compiler; nothing was
timed on a TPU.</footer>
</body></html>
"""
)


_RIGHT: Final = ' class="number"'


@dataclass(frozen=True)
class Share:
    """A cell that is a part of a whole: shown as a percentage and a bar."""

    value: float


Cell = str | int | float | Share | None


@dataclass(frozen=True)
class Section:
    """A table under a heading; numbers are set to the right, None is a dash."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


def render_page(
    title: str,
    lead: str,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    figure: str = "",
) -> str:
    """The page as text: facts in pairs, then `figure` (an `<svg>` element), then each section."""
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    parts = [f"<dl>{pairs}</dl>" if pairs else ""]
    if figure:
        parts.append(f"<h2>At a glance</h2><figure>{figure}</figure>")
    parts += [_section(section) for section in sections]
    return _PAGE.substitute(title=escape(title), lead=escape(lead), body="\n".join(parts), version=__version__)


def _section(section: Section) -> str:
    words = [all(isinstance(row[number], str) for row in section.rows) for number in range(len(section.columns))]
    head = "".join(
        f"<th{_RIGHT * (not left)}>{escape(column)}</th>" for column, left in zip(section.columns, words, strict=True)
    )
    rows = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in section.rows)
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return (
        f'<h2>{escape(section.title)}</h2>{note}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return '<td class="number">-</td>'
        case Share(value=value):
            width = 100 * min(max(value, 0.0), 1.0)
            return f'<td class="number">{100 * value:.0f} %<span class="bar" style="width:{width:.0f}%"></span></td>'
        case float():
            return f'<td class="number">{_number(cell)}</td>'
        case int():
            return f'<td class="number">{cell:,}</td>'
        case _:
            return f"<td>{escape(cell)}</td>"


def _number(value: float) -> str:
    """Three digits that tell."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

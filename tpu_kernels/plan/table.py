"""Tables for people: equal rows of numbered layers are folded into one."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,6` for (0, 1, 2, 3, 6)."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(numbers), None]:
        if run and (number is None or number != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if number is not None:
            run.append(number)
    return ",".join(parts)


def fold_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows whose first cells differ in one layer number, and in nothing else, become one row.

    >>> fold_rows([("layers.0.attn", "x"), ("layers.1.attn", "x")])
    [['layers.{0-1}.attn', 'x']]
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for path, *rest in rows:
        number = _NUMBER.search(path)
        pattern = path if number is None else f"{path[: number.start()]}{{}}{path[number.end() :]}"
        groups.setdefault((pattern, *rest), []).extend([] if number is None else [int(number.group())])
    folded = []
    for (pattern, *rest), numbers in groups.items():
        text = _ranges(numbers) if len(numbers) == 1 else f"{{{_ranges(numbers)}}}" if numbers else ""
        folded.append([pattern.replace("{}", text, 1), *rest])
    return folded


def render_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 110) -> str:
    """A plain-text table of `rows`, folded by `fold_rows`."""
    table = Table(title=Text(title), title_justify="left", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in fold_rows(rows):
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(table)
    stream = console.file
    text = stream.getvalue() if isinstance(stream, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines())

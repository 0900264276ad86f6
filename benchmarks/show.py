"""Rows of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """A column for each key, those of words on the left; times with three digits."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for key in rows[0]:
        table.add_column(key, justify="left" if any(isinstance(row[key], str) for row in rows) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(highlight=False).print(table)

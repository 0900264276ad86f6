"""The table of docs/coverage.md."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpu_kernels.harness.coverage.row import Row

COLUMNS = ("architecture", "swapped", "equal", "padded", "why not swapped, what ran the plain way")


def summary(rows: Iterable[Row]) -> str:
    """One sentence with the counts."""
    rows = list(rows)
    swapped = sum(row.swapped > 0 and row.kernel_ran for row in rows)
    padded = [row for row in rows if row.padded is not None]
    return (
        f"{sum(row.equal for row in rows)} of {len(rows)} equal; attention ran by kernel in {swapped};"
        f" left-padded batches equal in {sum(bool(row.padded) for row in padded)} of {len(padded)}."
    )


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """The cells of one row, in the order of COLUMNS."""
    padded = {True: "yes", False: "NO", None: "-"}[row.padded]
    return (row.name, f"{row.swapped} of {row.layers}", "yes" if row.equal else "NO", padded, "; ".join(_remarks(row)))


def render(rows: Iterable[Row]) -> str:
    """A Markdown table, one line per architecture."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _remarks(row: Row) -> list[str]:
    if row.error is not None:
        return [row.error.splitlines()[0]]
    remarks = [f"{count} kept: {reason}" for reason, count in row.kept.items()]
    remarks += [f"{ran}" for ran in row.ran if "(" in ran]
    remarks += [re.sub(r" \(\d+ x\)$", "", note) for note in row.notes]
    return list(dict.fromkeys(remarks))

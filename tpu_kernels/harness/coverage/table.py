"""The table of docs/coverage.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tpu_kernels.harness.coverage.row import Row

OPS: Final = ("attention", "norm", "mlp", "experts", "rotary")
COLUMNS: Final = ("architecture", "auto", "always", "padded", *OPS, "why not swapped, what ran the plain way")
_KERNELS: Final = {"gated MLPs": "mlp/gated-mlp", "two-layer MLPs": "mlp/two-layer-mlp"}


def summary(rows: Iterable[Row]) -> str:
    """A few sentences with the counts."""
    rows = list(rows)
    policies = dict.fromkeys(policy for row in rows for policy in row.outcomes)
    equal = [
        f"{sum(policy in row.outcomes and row.outcomes[policy].equal for row in rows)} of {len(rows)} equal ({policy})"
        for policy in policies
    ]
    padded = [row for row in rows if row.padded is not None]
    counts = [f"attention ran by kernel in {sum(row.kernel_ran() for row in rows)}"]
    counts += [f"{op} swapped in {sum(row.swapped.get(op, 0) > 0 for row in rows)}" for op in OPS[1:]]
    counts += [f"{what} in {sum(name in row.kernels for row in rows)}" for what, name in _KERNELS.items()]
    return (
        f"{'; '.join(equal) or f'0 of {len(rows)} equal'}; left-padded batches equal in"
        f" {sum(bool(row.padded) for row in padded)} of {len(padded)}. Architectures: {', '.join(counts)}."
    )


def cells(row: Row) -> tuple[str, ...]:
    """The cells of one row, in the order of COLUMNS."""

    def equal(policy: str) -> str:
        outcome = row.outcomes.get(policy)
        return "-" if outcome is None and row.error is None else "yes" if outcome and outcome.equal else "NO"

    padded = {True: "yes", False: "NO", None: "-"}[row.padded]
    ops = (f"{row.swapped.get(op, 0)} of {row.layers[op]}" if row.layers.get(op) else "-" for op in OPS)
    return (row.name, equal("auto"), equal("always"), padded, *ops, "; ".join(_remarks(row)))


def render(rows: Iterable[Row]) -> str:
    """A Markdown table, one line per architecture."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _remarks(row: Row) -> list[str]:
    if row.error is not None:
        return [row.error.splitlines()[0]]
    remarks = [f"{op}: {count} kept: {reason}" for op, reasons in row.kept.items() for reason, count in reasons.items()]
    # What a policy leaves to XLA is no fault of the architecture.
    outcome = row.outcomes.get("always") or next(iter(row.outcomes.values()), None)
    remarks += [ran for ran in outcome.ran if "(" in ran] if outcome else []
    remarks += [re.sub(r" \(\d+ x\)$", "", note) for each in row.outcomes.values() for note in each.notes]
    return list(dict.fromkeys(remarks))

"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tpu_kernels.harness.coverage.row import Row
    from tpu_kernels.registry import Registry
    from tpu_kernels.runtime.stack import Finding

_STYLES = {"ok": "green", "info": "cyan", "warning": "yellow", "broken": "bold red"}


def print_findings(findings: Iterable[Finding]) -> None:
    """The doctor's findings as a table, needs where they are not met, then each remedy in full and a sum."""
    findings = list(findings)
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "what", "found", "needs"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=_STYLES[finding.status])
        needs = "" if finding.status == "ok" else finding.needs
        table.add_row(status, Text(finding.name), Text(finding.found), Text(needs))
    console.print(table)
    for finding in findings:
        if finding.remedy:
            style = _STYLES[finding.status]
            console.print(Text.assemble((finding.name, style), ": ", finding.remedy), soft_wrap=True)
    broken = sum(finding.status == "broken" for finding in findings)
    console.print(f"{broken} broken." if broken else "Nothing is broken.")


def print_registry(registry: Registry) -> None:
    """Every spec with its kernel and where it came from."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("kernel", "from"):
        table.add_column(column, overflow="fold")
    for spec in registry:
        kernel = f"{spec.source}\n{spec.entry}"
        place = f"{registry.provider_of(spec.name)}\n{spec.cite('name')}"
        table.add_row(Text(spec.name), Text(kernel), Text(place))
    console.print(table)


def print_coverage(total: int, run: Callable[[Callable[[Row], None]], list[Row]]) -> list[Row]:
    """Run with a bar on stderr; each row is printed as it comes, then the counts. Returns the rows."""
    from tpu_kernels.harness.coverage.table import COLUMNS, cells, summary

    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("architectures", total=total)

        def show(row: Row) -> None:
            bar.advance(task)
            name, *values = cells(row)
            text = "  ".join(f"{column} {value}" for column, value in zip(COLUMNS[1:-1], values, strict=False))
            style = "green" if row.right else "bold red"
            console.print(Text.assemble((name, style), f"  {text}  {values[-1]}"), soft_wrap=True)

        rows = run(show)
    console.print(summary(rows))
    return rows

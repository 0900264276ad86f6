"""The findings of the demonstration, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpu_kernels.demo.findings import Findings, Generated


def show(findings: Findings, console: Console) -> None:
    """Print the report, the texts, compilations per prompt length, and what follows from them."""
    console.print()
    console.print(findings.report, markup=False, highlight=False, soft_wrap=True)
    console.print()
    _texts(findings.ours, console)
    console.print(_table(findings))
    _verdict(findings, console)


def _texts(runs: Sequence[Generated], console: Console) -> None:
    console.print("[bold]What the model wrote[/bold] (after the arrow)\n")
    for run in runs:
        console.print(
            f"[dim]{escape(run.prompt)}[/dim] [cyan]->[/cyan][bold]{escape(run.text)}[/bold]\n", highlight=False
        )


def _table(findings: Findings) -> Table:
    table = Table(title=f"{findings.unit} during generate, in this order", title_justify="left")
    for heading in ("prompt tokens", "plain transformers", "with tpu-kernels"):
        table.add_column(heading, justify="right")
    for mine, other in zip(findings.ours, findings.plain, strict=True):
        table.add_row(str(mine.prompt_tokens), str(other.compilations), str(mine.compilations))
    return table


def _verdict(findings: Findings, console: Console) -> None:
    total = sum(len(run.new_tokens) for run in findings.ours)
    difference = findings.first_difference
    equal = "[green]yes[/green]" if difference is None else "[red]no[/red]"
    where = f"all {total}" if difference is None else f"they part {difference}"
    console.print(f"Tokens equal plain SDPA's: {equal}, {where}.", highlight=False)
    ours, plain = findings.recompilations
    colour = "red" if ours else "green"
    console.print(
        f"{findings.unit} after the first call: [{colour}]{ours}[/{colour}] with tpu-kernels, {plain} plain.",
        highlight=False,
    )
    for fallback in findings.fallbacks:
        console.print(f"[red]No kernel ran in[/red] {escape(fallback)}", highlight=False)

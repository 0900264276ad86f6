"""`tpu-kernels coverage`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def coverage(
    names: Annotated[list[str] | None, typer.Argument(help="Architectures by name.", show_default=False)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every architecture that plain transformers gets right.")
    ] = False,
    shard: Annotated[str | None, typer.Option(help="Every Nth of them, from the Ith: I/N, I from 0.")] = None,
    architectures: Annotated[
        Path | None, typer.Option(help="JSON file that lists them; default: that of the source checkout.")
    ] = None,
    flow: Annotated[
        Literal["tpu-kernels", "plain"], typer.Option(help="An enabled model, or transformers' own static cache.")
    ] = "tpu-kernels",
    policy: Annotated[
        Literal["auto", "always", "both"], typer.Option(help="Of enable_tpu_kernels: what runs by kernel.")
    ] = "both",
    spec: Annotated[
        list[str] | None, typer.Option("--spec", help="Further spec file or folder, preferred; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the page here; --all alone writes docs/coverage.md of the checkout."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Keep rows in this file; those of such a run that it holds stay."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Architectures side by side.")] = 1,
) -> None:
    """Generate with many architectures on the emulated TPU, enabled, and compare each with transformers on the CPU.

    Exit code 1 if one is not equal.
    """
    from tpu_kernels.cli.tables import print_coverage
    from tpu_kernels.harness.coverage.collect import PAGE, collect, page, select

    try:
        selected = select(names or [], shard, every, architectures)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if output is None and every and flow == "tpu-kernels" and policy == "both" and not spec and architectures is None:
        output = PAGE
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.parent}", param_hint="--output")
    results = print_coverage(
        len(selected),
        lambda progress: collect(
            selected,
            file=architectures,
            flow=flow,
            specs=spec or (),
            policies=("auto", "always") if policy == "both" else (policy,),
            rows_file=rows,
            processes=processes,
            progress=progress,
        ),
    )
    if output is not None:
        output.write_text(page(results, f"tpu-kernels coverage {'--all' if every else ''}".strip()))
        print(f"written: {output}")
    if not all(row.right for row in results):
        raise typer.Exit(1)

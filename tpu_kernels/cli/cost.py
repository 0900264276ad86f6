"""`tpu-kernels cost`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer


def cost(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SPEC|MODEL]",
            help="Name or YAML file of a kernel's spec; or a model: Hub id, folder, path of a config.json. "
            "Default: every bundled kernel.",
            show_default=False,
        ),
    ] = None,
    generation: Annotated[
        list[str] | None, typer.Option(help="TPU generation; repeatable. Default: v5e, v6e, tpu7x.")
    ] = None,
    topology: Annotated[
        list[str] | None, typer.Option(help="Topology by libtpu's name, for example v6e:1x1; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Case of a kernel, or all cases of a model in the list; repeatable.")
    ] = None,
    all_cases: Annotated[bool, typer.Option("--all-cases", help="Of a kernel: all its cases, not a few.")] = False,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Of activations, cache and weights.")
    ] = "bfloat16",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Of attention and models: rows of the batch.", show_default=False)
    ] = None,
    max_len: Annotated[
        int | None, typer.Option(min=1, help="Of attention and models: positions of the cache.", show_default=False)
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of attention and models: positions in use. Default: half of the cache.", show_default=False
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of the other ops: tokens of the call.", show_default=False)
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Of a model: chips that it is divided over.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write roofline and bars to this png, svg or pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page to this file.")] = None,
) -> None:
    """Estimate what a kernel or a model costs on TPUs, from the TPU compiler's own schedules; needs no TPU."""
    # The compiler and the emulator run in processes of their own; this one must not take a TPU.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from rich.console import Console

    from tpu_kernels.errors import TpuKernelsError
    from tpu_kernels.lab.cost.command import Request, cost_report
    from tpu_kernels.lab.targets import GENERATIONS

    targets = (*(generation or ()), *(topology or ())) or GENERATIONS
    request = Request(tuple(targets), tuple(case or ()), dtype, batch, max_len, length, tokens, all_cases, tp)
    try:
        with Console(stderr=True).status(f"compiling for {', '.join(targets)}") as status:
            console = None if json else Console(highlight=False)
            report = cost_report(subject, request, say=status.update, console=console)
    except TpuKernelsError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        print(report.json())
    if plot is not None:
        report.plot(plot)
    if html is not None:
        report.page(html)

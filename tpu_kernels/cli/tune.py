"""`tpu-kernels tune`."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def tune(
    spec: Annotated[str, typer.Argument(help="Name or YAML file of a kernel's spec.", show_default=False)],
    generation: Annotated[
        list[str] | None, typer.Option(help="TPU generation; repeatable. Default: v5e, v6e, tpu7x.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Case to judge by, or all cases of a model; repeatable.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Of attention: rows of the batch.", show_default=False)
    ] = None,
    max_len: Annotated[
        int | None, typer.Option(min=1, help="Of attention: positions of the cache.", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Of the other ops: tokens of a call.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the result and write nothing.")] = False,
) -> None:
    """Search a kernel's block sizes for each TPU generation and write the best into its spec.

    By the estimates of `tpu-kernels cost`; by real timings for the generation of a TPU in this machine.
    """
    # The compiler and timings run in processes of their own; this one must not take a TPU.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from rich.console import Console

    from tpu_kernels.errors import TpuKernelsError
    from tpu_kernels.lab.targets import GENERATIONS
    from tpu_kernels.lab.tune.command import print_tuned, tune_spec, write

    try:
        with Console(stderr=True).status("compiling"):
            sizes = {"batch": batch, "max_len": max_len, "tokens": tokens}
            found, results = tune_spec(spec, generation or GENERATIONS, case or (), **sizes)
    except TpuKernelsError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    print_tuned(results, Console(highlight=False))
    if not dry_run:
        print(f"written: {write(found, results)}")

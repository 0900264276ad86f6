"""`tpu-kernels demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    new_tokens: Annotated[int, typer.Option(help="Length of each continuation, in tokens.", min=1)] = 24,
) -> None:
    """Generate with the bundled model, plain and with kernels, on the TPU or on the emulated one."""
    from tpu_kernels.demo import run_demo

    raise typer.Exit(run_demo(new_tokens=new_tokens))

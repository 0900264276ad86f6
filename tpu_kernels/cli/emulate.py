"""`tpu-kernels emulate`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def emulate(
    script: Annotated[str, typer.Argument(help="Python file to run.", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also on a machine with a TPU, or with an untried torch_tpu.")
    ] = False,
) -> None:
    """Run a Python script on the emulated TPU: the real torch_tpu on XLA's CPU plugin."""
    # A fresh interpreter: the emulator must start before anything imports torch.
    flags = ["--force"] if force else []
    command = [sys.executable, "-m", "tpu_kernels.emulator", *flags, script, *(args or ())]
    sys.stdout.flush()
    os.execv(sys.executable, command)

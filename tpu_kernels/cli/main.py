"""`tpu-kernels`: the entry point that gathers the commands."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Annotated

import typer

from tpu_kernels import __version__
from tpu_kernels._logging import verbosity
from tpu_kernels.cli.compile import compile
from tpu_kernels.cli.cost import cost
from tpu_kernels.cli.coverage import coverage
from tpu_kernels.cli.demo import demo
from tpu_kernels.cli.doctor import doctor
from tpu_kernels.cli.emulate import emulate
from tpu_kernels.cli.generate import generate
from tpu_kernels.cli.launch import launch
from tpu_kernels.cli.plan import plan
from tpu_kernels.cli.specs import specs
from tpu_kernels.cli.tune import tune
from tpu_kernels.errors import TpuKernelsError

app = typer.Typer(
    name="tpu-kernels",
    help="Hub kernels for transformers models on Google TPUs, and a TPU on a laptop to test them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command()(compile)
app.command()(cost)
app.command()(coverage)
app.command()(demo)
app.command()(doctor)
app.command(context_settings={"allow_interspersed_args": False})(emulate)
app.command()(generate)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(launch)
app.command()(plan)
app.command()(specs)
app.command()(tune)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tpu-kernels {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that come before a command."""


def main() -> None:
    """Run the command line. An error of ours is a message on stderr and exit code 1.

    With TPU_KERNELS_VERBOSITY=debug its traceback stands above the message.
    """
    try:
        app(prog_name="tpu-kernels")
    except TpuKernelsError as error:
        if verbosity() <= logging.DEBUG:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

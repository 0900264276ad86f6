"""`tpu-kernels launch`."""

from __future__ import annotations

from typing import Annotated

import typer


def launch(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Python file to run and its arguments; before it, options of torchrun.", metavar="SCRIPT"),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option("--nproc", "--nproc-per-node", help="Processes on this host, one per TPU.", show_default=False),
    ] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="Each process on an emulated TPU.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Emulate even on a machine with a TPU.")] = False,
) -> None:
    """Run a script in one process per TPU, started by torchrun.

    torchrun's own options pass through, for instance --nnodes 2 --node-rank 0 --master-addr HOST for several hosts,
    --max-restarts, --log-dir, --tee 3, or -m for a module. `torchrun --help` lists them.
    """
    from tpu_kernels.launch.launcher import run_launch

    raise typer.Exit(run_launch(arguments or [], nproc=nproc, emulate=emulate, force=force))

"""`tpu-kernels specs`."""

from __future__ import annotations

from typing import Annotated

import typer


def specs(
    spec: Annotated[
        list[str] | None, typer.Option("--spec", help="Further spec file or folder; may be repeated.")
    ] = None,
) -> None:
    """List all kernel specs in order of preference, and where each came from."""
    from tpu_kernels.cli.tables import print_registry
    from tpu_kernels.registry import load_registry

    print_registry(load_registry(spec))

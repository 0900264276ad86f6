"""`tpu-kernels doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check packages, torch, TPU chips, the Hub and kernel specs; exit code 1 if something is broken."""
    from tpu_kernels.cli.tables import print_findings
    from tpu_kernels.runtime.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        print_findings(diagnosis.findings)
    raise typer.Exit(0 if diagnosis.ok else 1)

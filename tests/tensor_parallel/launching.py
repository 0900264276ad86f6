"""Runs a script on emulated chips by `tpu-kernels launch --emulate`, and gives what each rank wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent.parent


def launch(nproc: int, script: str, *arguments: str, out: Path, **variables: str) -> list[dict[str, Any]]:
    """Run `scripts/SCRIPT OUT ARGUMENTS...` on `nproc` chips; the JSON that each rank wrote to OUT/RANK.json."""
    main = "from tpu_kernels.cli.main import main; main()"
    command = [sys.executable, "-c", main, "launch", "--nproc", str(nproc), "--emulate"]
    done = subprocess.run(
        [*command, str(SCRIPTS / script), str(out), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(nproc)]

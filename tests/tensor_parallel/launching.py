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


def start(nproc: int, script: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Begin to run `scripts/SCRIPT ARGUMENTS...` on `nproc` emulated chips, with `options` of torchrun."""
    main = "from tpu_kernels.cli.main import main; main()"
    command = [sys.executable, "-c", main, "launch", "--nproc", str(nproc), "--emulate", *options]
    return subprocess.Popen(
        [*command, str(SCRIPTS / script), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 1200) -> None:
    """Wait for a launch; one that fails is an AssertionError with the end of what it said."""
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        said, _ = process.communicate()
        raise AssertionError(f"not over after {timeout:.0f} s: {said[-6000:]}") from None
    assert process.returncode == 0, said[-8000:]


def written(out: Path, ranks: int) -> list[dict[str, Any]]:
    """The JSON that each rank wrote to OUT/RANK.json."""
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def launch(nproc: int, script: str, *arguments: str, out: Path) -> list[dict[str, Any]]:
    """Run `scripts/SCRIPT OUT ARGUMENTS...` on `nproc` chips; what each rank wrote."""
    options = [each for each in arguments if each.startswith("--")]
    finish(start(nproc, script, *options, str(out), *(each for each in arguments if each not in options)))
    return written(out, nproc)

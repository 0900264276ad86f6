"""Emulated chips, one process each, and the collectives between them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def test_every_collective_between_two_chips() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", "-m", "tpu_kernels.emulator", str(SCRIPTS / "collectives.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "equal" in line) == [
        "rank 0 of 2: all equal",
        "rank 1 of 2: all equal",
    ]

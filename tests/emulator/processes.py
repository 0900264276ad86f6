"""Start Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def python(
    *arguments: str, environment: Mapping[str, str] = os.environ, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS...` in the checkout, with `variables` on top of `environment`."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )

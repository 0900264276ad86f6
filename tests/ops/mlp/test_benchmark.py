"""The benchmark of MLPs prints what it promises, from any folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_as_a_file(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "mlp.py"), "--chip", "v6e", "--model", "qwen3-0.6b"]
    done = subprocess.run(
        [*command, "--tokens", "1", "--tokens", "256", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    one, many = json.loads(done.stdout)
    sizes = {"chip", "model", "tokens", "hidden", "intermediate"}
    assert set(one) == sizes | {"kernel_us", "xla_us", "limit_us", "ratio"}
    assert (one["model"], one["tokens"], many["tokens"]) == ("qwen3-0.6b", 1, 256)
    assert 0.5 < one["limit_us"] / one["kernel_us"] < 1, "a decode step takes the time of its weights"
    assert one["kernel_us"] < many["kernel_us"] < 2 * one["kernel_us"], "256 rows read the weights once"
    assert one["ratio"] == pytest.approx(one["xla_us"] / one["kernel_us"])

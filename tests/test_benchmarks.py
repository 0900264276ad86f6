"""The benchmarks print what they promise, from any folder and by either way of starting them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_decode_attention_as_a_file(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "decode_attention.py"), "--chip", "v6e", "--batch", "1"]
    done = subprocess.run(
        [*command, "--max-len", "2048", "--length", "512", "--length", "2048", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    short, full = json.loads(done.stdout)
    names = {"chip", "batch", "q_heads", "kv_heads", "head_dim", "max_len", "length"}
    assert set(short) == names | {"kernel_us", "xla_us", "limit_us"}
    assert (short["chip"], short["length"], full["length"]) == ("v6e", 512, 2048)
    assert short["limit_us"] < short["kernel_us"] < full["kernel_us"]
    assert short["xla_us"] == full["xla_us"] > short["kernel_us"], "XLA reads the whole cache at any length"

"""How long it takes to plan, to swap and to undo: seconds on this machine's CPU.

    python -m benchmarks.swapping [--layers 36]

The plan is of a config alone (Qwen3-8B). Swapping is timed on a model of as many layers with small sizes on the
emulated TPU, since weights are not touched: the first time, with the kernels loaded from disk, and again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
CONFIG = ROOT / "benchmarks" / "configs" / "qwen3-8b.json"


def timed(call: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def measure(layers: int) -> list[dict[str, Any]]:
    """In the emulator: rows of seconds."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tpu_kernels import enable_tpu_kernels, plan_tpu_kernels

    plans = [timed(lambda: plan_tpu_kernels(CONFIG, policy="always")) for _ in range(2)]
    rows = [
        {"what": f"plan of {CONFIG.stem} ({number})", "seconds": seconds, "swapped": len(plan.swapped)}
        for number, (seconds, plan) in zip(("first", "again"), plans, strict=True)
    ]
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "vocab_size": 128}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, num_hidden_layers=layers)).eval().to("tpu")
    for number in ("first", "again"):
        seconds, report = timed(lambda: enable_tpu_kernels(model, policy="always"))
        rows.append({"what": f"swap {layers} layers ({number})", "seconds": seconds, "swapped": len(report.swapped)})
        rows.append({"what": f"undo ({number})", "seconds": timed(report.undo)[0], "swapped": 0})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=36)
    options = parser.parse_args()
    command = [sys.executable, "-m", "tpu_kernels.emulator", __file__, "--measure", str(options.layers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=environment)

    from benchmarks.show import print_rows

    print_rows(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        main()

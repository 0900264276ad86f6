"""XLA compilations that each prompt length costs, plain and with tpu-kernels, on the emulated TPU.

    python -m benchmarks.recompiles            # a table
    python -m benchmarks.recompiles --json     # [{flow, length, compilations}, ...]

One process for each flow; the lengths run one after the other in it, so what an earlier one compiled is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

FLOWS = ("plain", "tpu-kernels")
LENGTHS = (5, 9, 17, 40, 64, 100)
NEW_TOKENS = 8
CONFIG: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def measure(flow: str, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """One row for each length, counted in this process, in which the emulator runs."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tpu_kernels import emulator, enable_tpu_kernels

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).eval().to("tpu")
    if flow == "tpu-kernels":
        enable_tpu_kernels(model)
    rows = []
    for length in lengths:
        ids = torch.randint(3, 120, (1, length))
        if flow == "plain":
            ids = ids.to("tpu")
        before = emulator.compilations()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            cache_implementation="static",
        )
        rows.append({"flow": flow, "length": length, "compilations": emulator.compilations() - before})
    return rows


def measured_in_a_process(flow: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tpu_kernels.emulator", __file__, "--flow", flow]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--flow", choices=FLOWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flow:
        print(json.dumps(measure(options.flow, LENGTHS)))
        return
    rows = [row for flow in FLOWS for row in measured_in_a_process(flow)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    from benchmarks.show import print_rows

    by_length = {length: {"length": length} for length in LENGTHS}
    for row in rows:
        by_length[row["length"]][row["flow"]] = row["compilations"]
    print_rows(list(by_length.values()))


if __name__ == "__main__":
    main()

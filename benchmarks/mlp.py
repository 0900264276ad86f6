"""MLPs of real models: the bundled kernel beside XLA, estimated for each chip.

    python -m benchmarks.mlp [--chip v6e] [--model qwen3-8b] [--tokens 1 --tokens 8 …] [--json]

`xla_us` is the faster of two programs in plain torch, in bfloat16: linear layers as a model writes them, and the op's
reference, which sums and rounds as the kernel does. `limit_us` is the time of the bytes that must be read, at 90 % of
the HBM bandwidth, or of the products, if longer. An estimate of one op does not show that XLA fetches weights while the
op before still computes, which it cannot do for a kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.show import print_rows
from tpu_kernels.lab.cost.compare import Comparison, captured, compared, plain_costs
from tpu_kernels.lab.cost.subject import Subject, op_subject
from tpu_kernels.lab.jax_source import HUB_KERNELS
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.mlp.cases import case

SOURCE = HUB_KERNELS / "fused-mlp" / "torch-ext" / "fused_mlp" / "kernel.py"
MODELS = (
    "qwen3-0.6b",
    "qwen3-8b",
    "llama-3.1-8b",
    "gemma-2-9b",
    "phi-3-mini",
    "glm-4-9b",
    "gpt2",
    "starcoder2-3b",
)
TOKENS = (1, 8, 64, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mlp", description=__doc__)
    parser.add_argument("--chip", action="append", help=f"default: {', '.join(GENERATIONS)}")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--tokens", type=int, action="append", help="rows of x; default: 1, 8, 64, 256 and 512")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    calls = calls_of(options.model or MODELS, options.tokens or TOKENS)
    programs = captured(calls)
    rows = [
        row_of(result)
        for chip in options.chip or GENERATIONS
        for result in compared(calls, chip, plain_costs(programs, chip))
    ]
    print(json.dumps(rows, indent=1)) if options.json else print_rows(rows)


def calls_of(models: Sequence[str], tokens: Sequence[int]) -> list[Subject]:
    """Each model's MLP on so many rows, in bfloat16."""
    return [
        op_subject(replace(case(f"{model}/prefill").resized(tokens=count), name=f"{model}/{count}"), SOURCE, "bfloat16")
        for model in models
        for count in tokens
    ]


def row_of(result: Comparison) -> dict[str, Any]:
    """Times in microseconds; `ratio` is how many times faster the kernel is."""
    if result.kernel is None or result.best is None:
        why = result.error or "; ".join(result.plain.refused.values())
        raise SystemExit(f"{result.subject.name} on {result.generation}: {why}")
    return {
        "chip": result.generation,
        "model": result.subject.name.split("/")[0],
        **result.subject.sizes,
        "kernel_us": 1e6 * result.kernel.seconds,
        "xla_us": 1e6 * result.best.seconds,
        "limit_us": 1e6 * result.kernel.limit,
        "ratio": result.ratio,
    }


if __name__ == "__main__":
    main()

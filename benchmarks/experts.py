"""Experts of real models: the bundled kernel beside both ways of transformers, estimated for each chip.

    python -m benchmarks.experts [--chip v6e] [--model qwen3-30b-a3b] [--tokens 1 --tokens 8 …] [--json]

`batched_us` and `grouped_us` are transformers' `batched_mm` (it gathers the weights of each token's experts) and
`grouped_mm` (XLA's ragged dot), in bfloat16, as torch_tpu compiles them; the first is left out above 16 tokens.
`ratio` is how many times faster the kernel is than the faster of them. `bytes` are the kernel's bytes from and to HBM,
over those of the weights of the experts that some token chose; tokens choose theirs at random. `limit_us` is the time
of the bytes that must be read, at 90 % of the HBM bandwidth, or of the products, if longer.
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
from tpu_kernels.lab.cost.compare import XLA, Comparison, captured, compared, plain_costs
from tpu_kernels.lab.cost.subject import op_subject
from tpu_kernels.lab.jax_source import HUB_KERNELS
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.experts.cases import BASELINES, ExpertsCase, case

SOURCE = HUB_KERNELS / "grouped-experts" / "torch-ext" / "grouped_experts" / "kernel.py"
MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b")
TOKENS = (1, 8, 512)
DTYPE = "bfloat16"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experts", description=__doc__)
    parser.add_argument("--chip", action="append", choices=GENERATIONS, help="default: v6e")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--tokens", type=int, action="append", help="default: 1, 8 and 512")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = calls_of(options.model or MODELS, options.tokens or TOKENS)
    subjects = [op_subject(one, SOURCE, DTYPE) for one in cases]
    programs = captured(subjects)
    rows = [
        row_of(one, result)
        for chip in options.chip or ("v6e",)
        for one, result in zip(cases, compared(subjects, chip, plain_costs(programs, chip)), strict=True)
    ]
    print(json.dumps(rows, indent=1)) if options.json else print_rows(rows)


def calls_of(models: Sequence[str], tokens: Sequence[int]) -> list[ExpertsCase]:
    """Each model's experts for so many tokens."""
    return [
        replace(case(f"{model}/decode").resized(tokens=count), name=f"{model}/{count}")
        for model in models
        for count in tokens
    ]


def row_of(one: ExpertsCase, result: Comparison) -> dict[str, Any]:
    """Times in microseconds."""
    if result.kernel is None:
        raise SystemExit(f"{one.name} on {result.generation}: {result.error}")
    plain = {
        one.reference if label == XLA else one.baselines[label]: cost for label, cost in result.plain.costs.items()
    }
    batched, grouped = (
        1e6 * plain[BASELINES[name]].seconds if BASELINES[name] in plain else None
        for name in ("batched_mm", "grouped_mm")
    )
    moved = result.kernel.read_bytes + result.kernel.written_bytes
    return {
        "chip": result.generation,
        "model": one.name.split("/")[0],
        "tokens": one.shape.tokens,
        "kernel_us": 1e6 * result.kernel.seconds,
        "batched_us": batched,
        "grouped_us": grouped,
        "limit_us": 1e6 * result.kernel.limit,
        "ratio": result.ratio,
        "bytes": moved / one.weight_bytes(DTYPE),
    }


if __name__ == "__main__":
    main()

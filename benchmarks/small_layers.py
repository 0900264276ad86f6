"""Norms and rotary embeddings of real models: the bundled kernels beside XLA, estimated for each chip.

    python -m benchmarks.small_layers [--op norm] [--chip v6e] [--case gemma-2-9b …] [--json]

`xla_us` is the op's reference in plain torch, compiled as one program, in bfloat16. `limit_us` is the time of the bytes
that must be read and written, at 90 % of the HBM bandwidth. The estimate is of the op alone: it shows neither that XLA
fuses it with its neighbours in a model, nor that an eager model runs it as several programs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.show import print_rows
from tpu_kernels.lab.cost.compare import Comparison, captured, compared, plain_costs
from tpu_kernels.lab.cost.subject import Subject, op_subject
from tpu_kernels.lab.jax_source import HUB_KERNELS
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.catalog import cases_named, representatives_of

OPS = ("norm", "rotary")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_layers", description=__doc__)
    parser.add_argument("--op", action="append", choices=OPS, help="default: both")
    parser.add_argument("--chip", action="append", help=f"default: {', '.join(GENERATIONS)}")
    parser.add_argument("--case", action="append", help="a case or a model; default: cases that differ in kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for op in options.op or OPS:
        calls = calls_of(op, options.case)
        programs = captured(calls)
        for chip in options.chip or GENERATIONS:
            rows += [row_of(result) for result in compared(calls, chip, plain_costs(programs, chip))]
    print(json.dumps(rows, indent=1)) if options.json else print_rows(rows)


def calls_of(op: str, names: Sequence[str] | None) -> list[Subject]:
    """The op's cases of those names, in bfloat16."""
    source = HUB_KERNELS / op / "torch-ext" / op / "kernel.py"
    cases = cases_named(op, names) if names else representatives_of(op)
    return [op_subject(case, source, "bfloat16") for case in cases]


def row_of(result: Comparison) -> dict[str, Any]:
    kernel, xla = result.kernel, result.xla
    if kernel is None or xla is None:
        raise SystemExit(f"{result.subject.name} on {result.generation}: {result.error or result.plain.refused}")
    return {
        "chip": result.generation,
        "op": result.subject.job.function,
        "case": result.subject.name,
        "tokens": result.subject.sizes["tokens"],
        "kernel_us": 1e6 * kernel.seconds,
        "xla_us": 1e6 * xla.seconds,
        "limit_us": 1e6 * kernel.limit,
    }


if __name__ == "__main__":
    main()

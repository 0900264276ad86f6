"""Decode attention over a static cache: the bundled kernel beside XLA, estimated for each chip.

    python -m benchmarks.decode_attention [--chip v6e] [--batch 1 --batch 8] [--length 512 …] [--json]

`xla_us` is grouped attention in bfloat16 (`attention_functions.grouped_attention`) over the whole cache, which is what
XLA reads at any length. `limit_us` is the time of the bytes that must be read, at 90 % of the HBM bandwidth.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attention_calls import Sizes, kernel_costs, xla_seconds
from benchmarks.show import print_rows

CHIPS = ("v5e", "v6e", "tpu7x")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_attention", description=__doc__)
    parser.add_argument("--chip", action="append", help="default: v5e, v6e, tpu7x")
    parser.add_argument("--batch", type=int, action="append", help="default: 1 and 8")
    parser.add_argument("--q-heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--max-len", type=int, default=8192)
    parser.add_argument("--length", type=int, action="append", help="default: 512, 2048 and 8192")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = (options.q_heads, options.kv_heads, options.head_dim, 1, options.max_len)
    calls = [
        Sizes(batch, *sizes, length)
        for batch in options.batch or (1, 8)
        for length in options.length or (512, 2048, options.max_len)
    ]
    chips = options.chip or CHIPS
    xla = xla_seconds(calls, chips)
    rows = [
        {
            "chip": chip,
            "batch": call.batch,
            "q_heads": call.q_heads,
            "kv_heads": call.kv_heads,
            "head_dim": call.head_dim,
            "max_len": call.max_len,
            "length": call.length,
            "kernel_us": 1e6 * cost.seconds,
            "xla_us": 1e6 * xla[chip, call],
            "limit_us": 1e6 * cost.limit,
        }
        for chip in chips
        for call, cost in zip(calls, kernel_costs(calls, chip), strict=True)
    ]
    print(json.dumps(rows, indent=1)) if options.json else print_rows(rows)


if __name__ == "__main__":
    main()

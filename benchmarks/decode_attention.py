"""Decode attention over a static cache: the bundled kernel beside XLA, estimated for each chip.

    python -m benchmarks.decode_attention [--chip v6e] [--batch 1 --batch 8] [--length 512 …] [--json]

`xla_us` is grouped attention in bfloat16 (`attention_functions.grouped_attention`) over the whole cache, which is what
XLA reads at any length. `limit_us` is the time of the bytes that must be read, at 90 % of the HBM bandwidth.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attention_calls import Sizes, kernel_costs, parser_of, xla_seconds
from benchmarks.show import print_rows
from tpu_kernels.lab.targets import GENERATIONS


def main() -> None:
    parser = parser_of("python -m benchmarks.decode_attention", __doc__, max_len=8192)
    parser.add_argument("--batch", type=int, action="append", help="default: 1 and 8")
    parser.add_argument("--length", type=int, action="append", help="default: 512, 2048 and 8192")
    options = parser.parse_args()
    sizes = (options.q_heads, options.kv_heads, options.head_dim, 1, options.max_len)
    calls = [
        Sizes(batch, *sizes, length)
        for batch in options.batch or (1, 8)
        for length in options.length or (512, 2048, options.max_len)
    ]
    chips = options.chip or GENERATIONS
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

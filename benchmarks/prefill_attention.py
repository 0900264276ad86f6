"""Prefill attention, from an empty cache: the bundled kernel beside XLA and JAX's splash attention, estimated.

    python -m benchmarks.prefill_attention [--chip v6e] [--tokens 512 --tokens 2048] [--json]

`xla_us` is grouped attention in bfloat16 over the whole static cache, as a static cache has it without a kernel.
`splash_us` attends among the new tokens alone, with a causal mask that is fixed when it is compiled: it cannot continue
a cache and takes no padding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.attention_calls import Sizes, kernel_costs, parser_of, splash_seconds, xla_seconds
from benchmarks.show import print_rows
from tpu_kernels.lab.targets import GENERATIONS


def main() -> None:
    parser = parser_of("python -m benchmarks.prefill_attention", __doc__, max_len=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, action="append", help="default: 256, 512 and 2048")
    options = parser.parse_args()
    heads = (options.q_heads, options.kv_heads, options.head_dim)
    calls = [
        Sizes(options.batch, *heads, tokens, options.max_len, tokens) for tokens in options.tokens or (256, 512, 2048)
    ]
    chips = options.chip or GENERATIONS
    xla = xla_seconds(calls, chips)
    rows = []
    for chip in chips:
        times = zip(calls, kernel_costs(calls, chip), splash_seconds(calls, chip), strict=True)
        for call, kernel, splash in times:
            rows.append(
                {
                    "chip": chip,
                    "batch": call.batch,
                    "tokens": call.tokens,
                    "max_len": call.max_len,
                    "kernel_us": 1e6 * kernel.seconds,
                    "xla_us": 1e6 * xla[chip, call],
                    "splash_us": None if splash is None else 1e6 * splash,
                }
            )
    print(json.dumps(rows, indent=1)) if options.json else print_rows(rows)


if __name__ == "__main__":
    main()

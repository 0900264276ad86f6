"""What the collectives of a model's steps cost on several chips, and what overlapping them with products would gain.

    python -m benchmarks.collectives                    # Qwen3-8B over 4 chips of v6e: decode steps, a prefill chunk
    python -m benchmarks.collectives --model benchmarks/configs/glm-4-9b.json --tp 2 --topology v5e --json

Nothing is timed: programs of rank 0, compiled by libtpu. `free` is the step if collectives took no time, which no
overlap can beat. `own product` is what a collective matmul could gain at most where nothing else runs beside: of each
collective the time of its bytes or that of the product that it reduces, whichever is less; the hops stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.decode_step import CONFIGS, Request
from benchmarks.show import print_rows
from tpu_kernels.lab.cost.model_cost import ModelCost, model_costs

STEPS = (("decode", 1), ("decode", 8), ("prefill", 1))


def row(step: str, cost: ModelCost) -> dict[str, Any]:
    """One line of the table; microseconds and percent of the step."""
    us, step_us = 1e6, 1e6 * cost.seconds
    main = max(cost.collectives, key=lambda one: one.count)
    in_all = us * sum(one.count * one.seconds for one in cost.collectives)
    hops_us = us * sum(one.count * one.collective.latency for one in cost.collectives)
    own = us * sum(one.count * one.hideable(cost.target.chip) for one in cost.collectives)
    return {
        "step": step,
        "batch": cost.case.batch,
        "step us": step_us,
        "collectives": sum(one.count for one in cost.collectives),
        "KiB each": main.collective.bytes / 1024,
        "us each": us * main.seconds,
        "us in all": in_all,
        "of them hops": hops_us,
        "free us": us * cost.seconds_apart,
        "gain %": 100 * (1 - cost.seconds_apart / cost.seconds),
        "own product us": own,
        "own product %": 100 * own / step_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default=str(CONFIGS / "qwen3-8b.json"), help="Hub id, folder or config.json")
    parser.add_argument("--topology", default="v6e", help="generation or topology")
    parser.add_argument("--tp", type=int, default=4, help="chips")
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--length", type=int, default=2048, help="positions of the cache in use at a decode step")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of the prefill chunk")
    parser.add_argument("--flow", default="tpu-kernels", choices=("tpu-kernels", "plain"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Compiler and emulator run in processes of their own; this one must not take a TPU.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    found = []
    for step, batch in STEPS:
        prefill = options.chunk if step == "prefill" else None
        length = options.chunk if prefill else options.length
        request = Request((options.topology,), "bfloat16", batch, options.max_len, length, options.tp)
        (cost,) = model_costs(options.model, request, (options.flow,), prefill=prefill)
        if cost.error:
            raise SystemExit(f"{step}, batch {batch}: {cost.error}")
        found.append(row(step, cost))
        print(f"{step}, batch {batch}: done", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1)) if options.json else print_rows(found)


if __name__ == "__main__":
    main()

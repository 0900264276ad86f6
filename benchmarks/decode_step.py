"""What one decoded token costs a model, plain and with tpu-kernels: memory, bytes, time by estimate, programs run.

    python -m benchmarks.decode_step                              # every config of benchmarks/configs, v5e v6e tpu7x
    python -m benchmarks.decode_step --model benchmarks/configs/qwen3-8b.json --topology v6e:1x1 --json
    python -m benchmarks.decode_step --model benchmarks/configs/qwen3-8b.json --topology v6e --tp 4

Over several chips all figures are of one of them, and `without spmd_safe` counts the programs into which torch_tpu
would cut the step, at every collective.

Nothing is timed and no weights are read: the decode step is captured on the emulated TPU and compiled by libtpu.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.executables import executables_on_chips, executables_per_token
from benchmarks.show import print_rows
from tpu_kernels.lab.cost.model_cost import ModelCost, model_costs
from tpu_kernels.lab.programs import FLOWS
from tpu_kernels.lab.targets import GENERATIONS

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class Request:
    """What `model_costs` is asked for with."""

    targets: tuple[str, ...]
    dtype: str
    batch: int | None
    max_len: int | None
    length: int | None
    tp_size: int


def row(cost: ModelCost, executables: int, cut: int | None = None) -> dict[str, Any]:
    """One line of the table; bytes and microseconds of one decoded token, None where the step did not compile."""
    compiled = cost.memory is not None
    total = cost.memory.total if cost.memory else None
    return {
        "model": Path(cost.case.model).stem,
        "chip": cost.target.chip.name,
        "batch": cost.case.batch,
        "max_len": cost.case.max_len,
        "length": cost.length,
        "flow": cost.case.flow,
        "fits": compiled and total is not None and total <= cost.target.chip.usable_hbm_bytes,
        "bytes": cost.hbm_bytes if compiled else None,
        "alias_bytes": cost.memory.alias if cost.memory else None,
        "cache_bytes": cost.cache_bytes if compiled else None,
        "executables": executables,
        **({} if cut is None else {"tp": cost.case.tp_size, "without spmd_safe": cut}),
        "estimate_us": round(1e6 * cost.seconds, 1) if compiled else None,
        "groups": cost.as_dict()["groups"],
        "error": cost.error,
    }


def rows(models: Sequence[str], request: Request) -> Iterator[dict[str, Any]]:
    for model in models:
        if request.tp_size > 1:
            cut = {flow: executables_on_chips(model, flow, request.tp_size, spmd_safe=False) for flow in FLOWS}
            for cost in model_costs(model, request):
                yield row(cost, cost.programs, cut[cost.case.flow])
            continue
        executables = {flow: executables_per_token(model, flow) for flow in FLOWS}
        for cost in model_costs(model, request):
            yield row(cost, executables[cost.case.flow])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", action="append", help="Hub id, folder or config.json; repeatable")
    parser.add_argument("--topology", action="append", help="repeatable; default v5e:1x1, v6e:1x1, tpu7x:2x2x1")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--length", type=int, default=2048, help="positions of the cache in use")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--tp", type=int, default=1, help="chips that the model is divided over")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Compiler and emulator run in processes of their own; this one must not take a TPU.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    models = options.model or [str(file) for file in sorted(CONFIGS.glob("*.json"))]
    smallest = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1") if options.tp == 1 else GENERATIONS
    targets = tuple(options.topology or smallest)
    request = Request(targets, options.dtype, options.batch, options.max_len, options.length, options.tp)
    found = []
    for one in rows(models, request):
        print(f"{one['model']} {one['chip']} {one['flow']}: {one['error'] or 'done'}", file=sys.stderr, flush=True)
        found.append(one)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print_rows([{key: one[key] for key in one if key not in ("groups", "error")} for one in found])


if __name__ == "__main__":
    main()

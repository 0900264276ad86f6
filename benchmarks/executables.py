"""How many programs run for one decoded token, counted on the emulated TPU or in a capture.

python -m benchmarks.executables benchmarks/configs/qwen3-8b.json --tp 4     # with spmd_safe and without
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the checkout is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tpu_kernels import emulator
from tpu_kernels.lab.programs import FLOWS, ModelCase, capture_model
from tpu_kernels.lab.programs.requests import Flow

_LAYERS = 2
_SHRUNK = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 128, "num_hidden_layers": _LAYERS}
"""A count of programs does not depend on sizes; running does."""


def executables_per_token(model: str, flow: str, mode: str = "compiled") -> int:
    """Programs that run between two tokens of `generate`, for a small model of the same architecture with 2 layers.

    flow  "plain", or "tpu-kernels" under policy "auto", or "attention": with attention kernels alone
    mode  "compiled", or "eager": with disable_compile=True
    """
    script, root = Path(__file__), Path(__file__).parents[1]
    command = [sys.executable, "-m", "tpu_kernels.emulator", str(script), model, flow, mode]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, env=environment)
    return int(json.loads(done.stdout.splitlines()[-1]))


def executables_on_chips(model: str, flow: Flow, tp_size: int, *, spmd_safe: bool, batch: int = 1) -> int:
    """Programs that each rank would run for a token of a model divided over `tp_size` chips; the model as it is.

    spmd_safe  whether the forward runs in `torch.tpu.distributed.spmd_safe`; otherwise torch_tpu cuts the step at
               every collective, as it does with plain transformers
    """
    case = ModelCase(model, flow, ("decode",), batch, tp_size=tp_size, spmd_safe=spmd_safe)
    return sum(program.runs for program in capture_model(case))


class _Counts:
    """A streamer that notes, at each token, how many programs had run."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def put(self, value: Any) -> None:
        self.seen.append(emulator.executions())

    def end(self) -> None:
        pass


def _count(model: str, flow: str, mode: str) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    from tpu_kernels import enable_tpu_kernels
    from tpu_kernels.plan.model_view import resolve_model

    config = resolve_model(model).config
    for name, value in _SHRUNK.items():
        setattr(config, name, min(value, getattr(config, name)))
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:_LAYERS]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    shrunk = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().to("tpu")
    ids = torch.ones((1, 3), dtype=torch.int64)
    if flow == "plain":
        ids = ids.to("tpu")
    else:
        enable_tpu_kernels(shrunk, include=["*attn", "*attention"] if flow == "attention" else None)
    counts = _Counts()
    shrunk.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
        streamer=counts,
        disable_compile=mode == "eager",
    )
    return counts.seen[-1] - counts.seen[-2]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("model", help="Hub id, folder or config.json")
    parser.add_argument("--tp", type=int, default=2, help="chips")
    parser.add_argument("--flow", default="tpu-kernels", choices=FLOWS)
    options = parser.parse_args()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    for safe in (True, False):
        count = executables_on_chips(options.model, options.flow, options.tp, spmd_safe=safe)
        print(f"{'with' if safe else 'without'} spmd_safe: {count} per token")


if __name__ == "__main__":
    if emulator.is_active():  # started by `executables_per_token`
        print(json.dumps(_count(*sys.argv[1:])))
    else:
        main()

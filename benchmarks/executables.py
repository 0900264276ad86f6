"""How many programs run for one decoded token, counted on the emulated TPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


class _Counts:
    """A streamer that notes, at each token, how many programs had run."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def put(self, value: Any) -> None:
        from tpu_kernels import emulator

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


if __name__ == "__main__":
    print(json.dumps(_count(*sys.argv[1:])))

"""One rank of tests/tensor_parallel/test_one_decision.py: what happens to rank 1 alone. OUT MODEL KERNELS."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.support.kernels import spoiled_spec
from tpu_kernels import RanksDisagreeError, enable_tpu_kernels, tp_config

torch.set_num_threads(1)
torch.set_float32_matmul_precision("highest")
out, folder, kernels = (Path(name) for name in sys.argv[1:])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ids, mask, tokens, _ = torch.load(folder / "asked.pt")["[5, 18]"]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, distributed_config=tp_config(folder, size))
results: dict[str, Any] = {}


def generate(**mode: Any) -> bool:
    """Whether the tokens are right."""
    got = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=tokens.shape[1],
        min_new_tokens=tokens.shape[1],
        do_sample=False,
        cache_implementation="static",
        **mode,
    )
    return torch.equal(got[:, ids.shape[1] :], tokens)


def ran(report: Any, op: str) -> list[list[str]]:
    """What the layers of an op ran, and why."""
    return sorted([call.path, call.phase, call.chosen, call.reason] for call in report.calls if call.op == op)


def attention_alone(kernel: str) -> dict[str, Any]:
    spec = spoiled_spec(kernels / kernel / "kernel")
    return {"specs": [spec], "include": ["*.self_attn"], "prefill_chunk": 16}


# A kernel that one rank cannot load.
own = "broken" if rank == 1 else "whole"
with enable_tpu_kernels(model, **attention_alone(own)) as report:
    results["does not load"] = {"layers": [[entry.kernel, entry.reason] for entry in report.entries]}

# A kernel that fails on one rank: when it is traced, when it is compiled, in an eager call.
for name, mode in (("traced", {}), ("compiled", {}), ("traced", {"disable_compile": True})):
    with enable_tpu_kernels(model, **attention_alone(name)) as report:
        right = generate(**mode)
        key = f"fails when it is {name}" + " in an eager call" * bool(mode)
        results[key] = {"right": right, "ran": ran(report, "attention")}

# A layer that is changed on one rank, before and after it was compiled.
for when in ("before", "after"):
    with enable_tpu_kernels(model, include=["*.mlp"], policy="always", prefill_chunk=16) as report:
        right = when == "before" or generate()
        part = model.model.layers[0].mlp.gate_proj
        handle = part.register_forward_hook(lambda *_: None) if rank == 1 else None
        right = generate() and right
        results[f"changed {when} it was compiled"] = {"right": right, "ran": ran(report, "mlp")}
        if handle is not None:
            handle.remove()

# Other tokens on one rank, and a call that one rank has to run the plain way.
with enable_tpu_kernels(model, include=["*.self_attn"], prefill_chunk=16) as report:
    try:
        model.generate(ids + rank, attention_mask=mask, max_new_tokens=2, cache_implementation="static")
    except RanksDisagreeError as error:
        results["other tokens"] = str(error)
    if rank == 1:
        model.lm_head.train()
        model.training = True
    right = generate(disable_compile=True)
    model.eval()
    results["the plain way"] = {"right": right, "notes": list(report.notes)}

# A part of the model knows of the ranks, too; what looks at values in a hook does not disturb.
hook = model.model.layers[0].register_forward_hook(lambda module, args, output: float(output.sum().cpu()) and None)
with enable_tpu_kernels(model.model, include=["*mlp"], policy="always") as inner:
    with torch.no_grad():
        model(ids, attention_mask=mask)
    results["a part"] = ran(inner, "mlp")
hook.remove()

# Other arguments on one rank.
try:
    enable_tpu_kernels(model, max_cache_len=256 + rank)
except RanksDisagreeError as error:
    results["other arguments"] = {"error": str(error), "untouched": "generate" not in vars(model)}

(out / f"{rank}.json").write_text(json.dumps(results))

"""Prints, as JSON, the candidate layers of tiny models as one of two ranks has them. No rank is ever talked to."""

import json
import os
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from tests.support.tensor_parallel import tiny_configs
from tpu_kernels.plan.layers import candidate_layers
from tpu_kernels.plan.tensor_parallel import plan_tensor_parallel
from tpu_kernels.runtime.parallel_styles import register_styles

CHIPS = 2
dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=CHIPS)
mesh = init_device_mesh("cpu", (CHIPS,))
configs = tiny_configs(layers=1)


def layers(name: str, rules: dict[str, str] | None = None, adapted: bool = False) -> dict[str, Any]:
    """The last layer of each op: what stands against it, its local sizes, and what follows its kernel."""
    plan = plan_tensor_parallel(configs[name], CHIPS).overrides if adapted else {}
    register_styles(plan.values())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configs[name])
    apply_tensor_parallelism(model, mesh, model.tp_plan | plan | (rules or {}))
    found: dict[str, Any] = {}
    for layer in candidate_layers(model.eval()):
        reduction = layer.binding.reduction if layer.binding is not None else None
        summed = None if reduction is None else [reduction.mesh.size(), reduction.bias, list(reduction.shared)]
        found[layer.op] = {"obstacle": layer.obstacle, "sizes": dict(layer.facts.sizes), "summed": summed}
    return found


MLP = "model.layers.*.mlp"
print(
    json.dumps(
        {
            "by columns and rows": layers("llama-3.1-8b"),
            "with biases": layers("odd-sizes"),
            "gathered in between": layers("phi-4"),
            "packed": layers("phi-4", adapted=True),
            "fused but cut in one piece": layers(
                "phi-4", {f"{MLP}.gate_up_proj": "colwise", f"{MLP}.down_proj": "rowwise"}
            ),
            "the last projection whole": layers("llama-3.1-8b", {f"{MLP}.down_proj": "replicate"}),
            "experts": layers("qwen3-moe"),
            "experts with biases": layers("gpt-oss-20b", adapted=True),
            "experts divided among ranks": layers("qwen3-moe", {f"{MLP}.experts": "replicate"}),
            "a norm that is cut": layers("llama-3.1-8b", {"model.norm": "all_reduce"}),
        }
    )
)

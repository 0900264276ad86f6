"""Experts are told apart by their marks and by what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tpu_kernels.harness.coverage.architectures import load_architectures
from tpu_kernels.plan.experts import experts_layer, holds_experts

ARCHITECTURES = load_architectures()


def experts_of(name: str) -> nn.Module:
    return next(module for module in ARCHITECTURES[name].build().modules() if holds_experts(module))


FOUND = {
    "silu": ("mixtral", {"gated", "silu"}, None),
    "interleaved, biases, clamp": (
        "gpt_oss",
        {"gated", "quick_gelu", "clamp", "interleaved", "bias", "transposed_weights"},
        ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"),
    ),
    "gated in float32": ("beam", {"gated", "silu"}, None),
    "clamp": ("hy_v4", {"gated", "silu", "clamp"}, None),
    "no gate": ("nemotron_h", {"two_layer", "relu2"}, ("up_proj", "down_proj", None, None)),
}


@pytest.mark.parametrize(("name", "features", "tensors"), FOUND.values(), ids=FOUND.keys())
def test_variant(name: str, features: set[str], tensors: tuple[str | None, ...] | None) -> None:
    module = experts_of(name)
    layer = experts_layer("experts", module)
    assert layer.obstacle is None and layer.binding is not None
    assert layer.facts.features == features
    assert layer.binding.tensors == (tensors or ("gate_up_proj", "down_proj", None, None))
    assert len(layer.binding.inputs) == 3
    assert layer.binding.keywords.get("rounding") == {"beam": "last", "nemotron_h": None}.get(name, "each")


def test_sizes_are_those_of_the_weights() -> None:
    layer = experts_layer("experts", experts_of("gpt_oss"))
    config = ARCHITECTURES["gpt_oss"].arguments
    assert layer.facts.sizes == {
        "hidden": config["hidden_size"],
        "intermediate": config["intermediate_size"],
        "num_experts": config["num_local_experts"],
    }


def test_a_large_module_on_the_meta_device_is_probed() -> None:
    module: Any = experts_of("mixtral").to("meta").to(torch.bfloat16)
    module.gate_up_proj = nn.Parameter(torch.empty(128, 1536, 2048, device="meta", dtype=torch.bfloat16))
    module.down_proj = nn.Parameter(torch.empty(128, 2048, 768, device="meta", dtype=torch.bfloat16))
    module.num_experts, module.hidden_dim, module.intermediate_dim = 128, 2048, 768
    layer = experts_layer("experts", module)
    assert layer.obstacle is None and layer.facts.sizes == {"hidden": 2048, "intermediate": 768, "num_experts": 128}


def test_experts_that_take_every_token_are_kept() -> None:
    layer = experts_layer("experts", experts_of("llama4_text"))
    assert layer.binding is None and "not called with the experts of each token" in (layer.obstacle or "")


def test_others_are_kept_with_the_reason() -> None:
    module: Any = experts_of("mixtral")
    module.act_fn = nn.Softshrink()
    assert "something else" in (experts_layer("experts", module).obstacle or "")
    module = experts_of("mixtral")
    module.scale = nn.Parameter(torch.ones(4))
    assert experts_layer("experts", module).obstacle == "it has further parameters: scale"
    module = experts_of("mixtral")
    module.has_post_expert_norm = True
    assert experts_layer("experts", module).obstacle == "a norm follows each expert"

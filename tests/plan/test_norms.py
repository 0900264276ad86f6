"""Norm layers are told apart by what they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm, Qwen3NextRMSNormGated

from tpu_kernels.plan.norms import is_norm, norm_layer

FOUND: dict[str, tuple[Callable[[], nn.Module], dict[str, object]]] = {
    "round, then scale": (
        lambda: LlamaRMSNorm(64, eps=1e-6),
        {"eps": 1e-6, "center": False, "offset": 0.0, "order": "round_then_scale"},
    ),
    "scale, then round": (
        lambda: Olmo2RMSNorm(64, eps=1e-5),
        {"eps": 1e-5, "center": False, "offset": 0.0, "order": "scale_then_round"},
    ),
    "one plus weight": (
        lambda: Gemma2RMSNorm(64, eps=1e-6),
        {"eps": 1e-6, "center": False, "offset": 1.0, "order": "scale_then_round"},
    ),
    "zero-centred weight": (
        lambda: Qwen3NextRMSNorm(64),
        {"eps": 1e-6, "center": False, "offset": 1.0, "order": "scale_then_round"},
    ),
    "one plus weight, rounded": (
        lambda: NemotronLayerNorm1P(64),
        {"eps": 1e-5, "center": True, "offset": 1.0, "order": "round_offset"},
    ),
    "LayerNorm": (lambda: nn.LayerNorm(64), {"eps": 1e-5, "center": True, "offset": 0.0, "order": "scale_then_round"}),
    "LayerNorm without bias": (
        lambda: CohereLayerNorm(hidden_size=64),
        {"eps": 1e-5, "center": True, "offset": 0.0, "order": "scale_then_round"},
    ),
    "an epsilon in the code": (
        lambda: OlmoLayerNorm(64),
        {"eps": 1e-5, "center": True, "offset": 0.0, "order": "scale_then_round"},
    ),
    "no weight": (
        lambda: nn.RMSNorm(64, eps=3e-4, elementwise_affine=False),
        {"eps": 3e-4, "center": False, "offset": 0.0, "order": "scale_then_round"},
    ),
}


@pytest.mark.parametrize(("make", "expected"), FOUND.values(), ids=FOUND.keys())
def test_variant(make: Callable[[], nn.Module], expected: dict[str, object]) -> None:
    layer = norm_layer("norm", make())
    assert layer.obstacle is None and layer.binding is not None
    assert layer.binding.keywords == expected


def test_the_features_name_what_a_kernel_must_cover() -> None:
    layer = norm_layer("norm", NemotronLayerNorm1P(64))
    assert layer.facts.features == {"layer_norm", "weight", "bias", "weight_offset", "scale_then_round"}
    assert layer.facts.sizes == {"hidden": 64} and layer.facts.dtype == "float32"


class LargestNorm(nn.Module):
    """Divides by the largest number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden_states / hidden_states.abs().amax(-1, keepdim=True)


class AllBfloat16Norm(LargestNorm):
    """The mean of the squares is rounded before its root."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        squares = hidden_states.pow(2).mean(-1, keepdim=True).to(torch.float16).to(hidden_states.dtype)
        return self.weight * hidden_states * torch.rsqrt(squares + 1e-6)


class NormOverTokens(LargestNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean((-2, -1), keepdim=True) + 1e-6)


class BrokenNorm(LargestNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("it cannot run")


KEPT = {
    "another norm": (LargestNorm, "something else"),
    "another rounding": (AllBfloat16Norm, "something else"),
    "over two dimensions": (NormOverTokens, "something else"),
    "raises": (BrokenNorm, "RuntimeError: it cannot run"),
    "a gate": (lambda: Qwen3NextRMSNormGated(64), "it takes hidden_states, gate"),
    "running statistics": (lambda: nn.BatchNorm1d(64), "does not run by itself"),
}


@pytest.mark.parametrize(("make", "reason"), KEPT.values(), ids=KEPT.keys())
def test_others_are_kept_with_the_reason(make: Callable[[], nn.Module], reason: str) -> None:
    module = make()
    assert is_norm(module)
    layer = norm_layer("norm", module)
    assert layer.binding is None and reason in (layer.obstacle or "")


def test_a_module_on_the_meta_device_is_probed_and_stays_as_it_was() -> None:
    with torch.device("meta"):
        module = LlamaRMSNorm(4096)
    before, state = dict(vars(module)), torch.get_rng_state()
    layer = norm_layer("norm", module.to(torch.bfloat16))
    assert layer.obstacle is None and layer.facts.sizes == {"hidden": 4096} and layer.facts.dtype == "bfloat16"
    assert vars(module) == before and torch.equal(torch.get_rng_state(), state)

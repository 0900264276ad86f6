"""MLP layers are told apart by their projections and by what they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    ApertusConfig,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    Lfm2Config,
    LlamaConfig,
    NemotronConfig,
    Phi3Config,
)
from transformers.models.apertus.modeling_apertus import ApertusMLP
from transformers.models.bloom.modeling_bloom import BloomMLP
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP
from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from tpu_kernels.plan.mlps import mlp_layer

SIZES = {"hidden_size": 64, "intermediate_size": 96}


class GateAndUpExchanged(nn.Module):
    """The names say otherwise than the code."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(64, size), nn.Linear(64, size)
        self.down_proj = nn.Linear(size, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.up_proj(x)) * self.gate_proj(x))


class Clamped(GateAndUpExchanged):
    def __init__(self) -> None:
        super().__init__(96)
        self.limit = 7.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate_proj(x).clamp(max=self.limit)
        up = self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj((up + 1) * gate * torch.sigmoid(1.702 * gate))


class Further(GateAndUpExchanged):
    """Adds a little that no kernel does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-3 * x


class TwoLinears(nn.Module):
    """Is no MLP and is not called one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


def lfm2() -> nn.Module:
    return Lfm2MLP(Lfm2Config(hidden_size=64, intermediate_size=96, block_auto_adjust_ff_dim=False))


FOUND: dict[str, tuple[Callable[[], nn.Module], tuple[str | None, ...], set[str]]] = {
    "silu": (
        lambda: LlamaMLP(LlamaConfig(**SIZES)),
        ("gate_proj.weight", "up_proj.weight", "down_proj.weight", None, None, None),
        {"gated", "silu"},
    ),
    "biases": (
        lambda: LlamaMLP(LlamaConfig(**SIZES, mlp_bias=True)),
        (*(f"{name}_proj.{kind}" for kind in ("weight", "bias") for name in ("gate", "up", "down")),),
        {"gated", "silu", "bias"},
    ),
    "gelu_tanh": (
        lambda: Gemma2MLP(Gemma2Config(**SIZES)),
        ("gate_proj.weight", "up_proj.weight", "down_proj.weight", None, None, None),
        {"gated", "gelu_tanh"},
    ),
    "fused": (
        lambda: Phi3MLP(Phi3Config(**SIZES)),
        ("gate_up_proj.weight", None, "down_proj.weight", None, None, None),
        {"gated", "fused_gate_up", "silu"},
    ),
    "unusual names": (
        lfm2,
        ("w1.weight", "w3.weight", "w2.weight", None, None, None),
        {"gated", "silu"},
    ),
    "names exchanged, all sizes alike": (
        GateAndUpExchanged,
        (*(f"{name}_proj.{kind}" for kind in ("weight", "bias") for name in ("up", "gate", "down")),),
        {"gated", "silu", "bias"},
    ),
    "clamped": (
        Clamped,
        (*(f"{name}_proj.{kind}" for kind in ("weight", "bias") for name in ("gate", "up", "down")),),
        {"gated", "quick_gelu", "clamp", "bias"},
    ),
    "two layers": (
        lambda: GPTNeoXMLP(GPTNeoXConfig(**SIZES)),
        ("dense_h_to_4h.weight", "dense_4h_to_h.weight", "dense_h_to_4h.bias", "dense_4h_to_h.bias"),
        {"two_layer", "gelu", "bias"},
    ),
    "two layers, relu squared": (
        lambda: NemotronMLP(NemotronConfig(**SIZES)),
        ("up_proj.weight", "down_proj.weight", None, None),
        {"two_layer", "relu2"},
    ),
    "transposed weights": (
        lambda: GPT2MLP(96, GPT2Config(n_embd=64)),
        ("c_fc.weight", "c_proj.weight", "c_fc.bias", "c_proj.bias"),
        {"two_layer", "gelu_tanh", "bias", "transposed_weights"},
    ),
}


@pytest.mark.parametrize(("make", "tensors", "features"), FOUND.values(), ids=FOUND.keys())
def test_variant(make: Callable[[], nn.Module], tensors: tuple[str | None, ...], features: set[str]) -> None:
    layer = mlp_layer("mlp", make())
    assert layer is not None and layer.obstacle is None and layer.binding is not None
    assert layer.binding.tensors == tensors
    assert layer.facts.features == features
    assert layer.facts.sizes["hidden"] == 64


def test_a_clamp_is_found_with_its_limit() -> None:
    layer = mlp_layer("mlp", Clamped())
    assert layer is not None and layer.binding is not None
    assert layer.binding.keywords == {"activation": "quick_gelu", "limit": 7.0, "up_offset": 1.0, "rounding": "each"}


class FurtherMLP(Further):
    pass


class RoundsOften(Clamped):
    """In bfloat16 every step of the gate is rounded, so the module is further from its float32 than a kernel is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate_proj(x).clamp(max=self.limit)
        up = self.up_proj(x).clamp(-self.limit, self.limit)
        glu = gate * torch.sigmoid(gate * 1.702 / 8 + gate * 1.702 / 8 * 7)
        return self.down_proj((up + 1.0) * glu)


def test_one_that_rounds_more_often_than_a_kernel_is_found() -> None:
    layer = mlp_layer("mlp", RoundsOften())
    assert layer is not None and layer.binding is not None
    assert layer.binding.keywords["activation"] == "quick_gelu"


KEPT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "something is added": (FurtherMLP, "something else"),
    "an activation with parameters": (lambda: ApertusMLP(ApertusConfig(**SIZES)), "XIELUActivation"),
    "a residual": (lambda: BloomMLP(BloomConfig(hidden_size=64)), "it takes hidden_states, residual"),
}


@pytest.mark.parametrize(("make", "reason"), KEPT.values(), ids=KEPT.keys())
def test_others_are_kept_with_the_reason(make: Callable[[], nn.Module], reason: str) -> None:
    layer = mlp_layer("mlp", make())
    assert layer is not None and layer.binding is None and reason in (layer.obstacle or "")


@pytest.mark.parametrize("make", [TwoLinears, Further], ids=["two projections", "something is added"])
def test_what_is_not_called_an_mlp_and_is_none_is_no_candidate(make: Callable[[], nn.Module]) -> None:
    assert mlp_layer("x", make()) is None


def test_an_adapter_in_a_part_is_no_plain_projection() -> None:
    class Adapted(nn.Linear):
        pass

    module = LlamaMLP(LlamaConfig(**SIZES))
    module.up_proj = Adapted(64, 96, bias=False)
    layer = mlp_layer("mlp", module)
    assert layer is not None and "Adapted" in (layer.obstacle or "")


def test_a_large_module_on_the_meta_device_is_probed() -> None:
    with torch.device("meta"):
        module = LlamaMLP(LlamaConfig(hidden_size=4096, intermediate_size=12288)).to(torch.bfloat16)
    layer = mlp_layer("mlp", module)
    assert layer is not None and layer.obstacle is None
    assert layer.facts.sizes == {"hidden": 4096, "intermediate": 12288} and layer.facts.dtype == "bfloat16"

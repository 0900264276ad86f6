"""Which modules of a model are candidates, and that one of them does not speak for another."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.models import TINY
from tpu_kernels.plan import candidate_layers
from tpu_kernels.plan.mlps import mlp_layer
from tpu_kernels.plan.norms import norm_layer


def model(layers: int = 3) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TINY, num_hidden_layers=layers)).eval()


def mlps(found: LlamaForCausalLM) -> list[Any]:
    return [layer for layer in candidate_layers(found) if layer.op == "mlp"]


def test_a_forward_that_was_replaced_speaks_for_itself_alone() -> None:
    llama = model()

    def gelu(self: Any, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(functional.gelu(self.gate_proj(x)) * self.up_proj(x))
        return down

    llama.model.layers[0].mlp.forward = MethodType(gelu, llama.model.layers[0].mlp)
    first, *others = mlps(llama)
    assert first.obstacle == "its forward was replaced by another one"
    assert [layer.binding.keywords["activation"] for layer in others] == ["silu", "silu"]


def test_functions_that_differ_are_told_apart() -> None:
    llama = model()
    for layer, function in zip(llama.model.layers, (functional.silu, functional.gelu, functional.relu), strict=True):
        del layer.mlp.act_fn
        layer.mlp.act_fn = function
    assert [layer.binding.keywords["activation"] for layer in mlps(llama)] == ["silu", "gelu", "relu"]


def test_the_users_default_device_does_not_matter() -> None:
    llama = model(1)
    for device in ("meta", "cpu"):
        with torch.device(device):
            assert all(layer.obstacle is None for layer in candidate_layers(llama))


class Clamped(nn.Module):
    def __init__(self, limit: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(functional.silu(gate) * up)


@pytest.mark.parametrize("limit", [7.0, 100.0, 1000.0])
def test_a_clamp_of_any_size_is_found(limit: float) -> None:
    layer = mlp_layer("mlp", Clamped(limit))
    assert layer is not None and layer.binding is not None and layer.binding.keywords["limit"] == limit


class ClampedNorm(nn.Module):
    """Without an epsilon; rows of zeros stay zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(1e-12))


class BiasedNorm(ClampedNorm):
    """An RMSNorm with a bias, which the kernel does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) + self.bias


class ScalarNorm(ClampedNorm):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("norm", [ClampedNorm, BiasedNorm, ScalarNorm])
def test_norms_that_the_kernel_would_not_equal_are_kept(norm: type[nn.Module]) -> None:
    assert norm_layer("norm", norm()).obstacle is not None

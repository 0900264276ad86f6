"""The operators on CPU tensors, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_10": lambda x: functional.gelu(x).clamp_(-10.0, 10.0),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square_(),
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "laplace": lambda x: torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0))).add_(1.0).mul_(0.5),
    "sqrtsoftplus": lambda x: functional.softplus(x).sqrt_(),
    "identity": lambda x: x,
}


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """float32 values that x's dtype can hold."""
    wide = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return wide.to(x.dtype).float()


def gated_mlp_on_cpu(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    down: torch.Tensor,
    gate_bias: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
    **_: Any,
) -> torch.Tensor:
    between = x.dtype if rounding == "each" else torch.float32
    if up is None:
        first, second = _linear(x, gate, gate_bias).chunk(2, dim=-1)
    else:
        first, second = _linear(x, gate, gate_bias), _linear(x, up, up_bias)
    if limit is not None:
        first = first.clamp(max=limit).to(between).float()
        second = second.clamp(-limit, limit).to(between).float()
    if up_offset:
        second = (second + up_offset).to(between).float()
    inner = ACTIVATIONS[activation](first).to(between).float() * second
    return _linear(inner.to(x.dtype), down, down_bias).to(x.dtype)


def mlp_on_cpu(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    transposed: bool = False,
    **_: Any,
) -> torch.Tensor:
    if transposed:
        up, down = up.T, down.T
    inner = ACTIVATIONS[activation](_linear(x, up, up_bias))
    return _linear(inner.to(x.dtype), down, down_bias).to(x.dtype)

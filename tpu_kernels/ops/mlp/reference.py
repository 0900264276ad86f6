"""The references for MLPs: plain torch, any device and float dtype; and the same as a model writes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from tpu_kernels.ops.activations import ACTIVATIONS


def gated_mlp_reference(
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
) -> torch.Tensor:
    """What a `gated_mlp` kernel must compute, with the casts in their order, written for reading and not for speed.

    Args:
        x: [..., H], float32, bfloat16 or float64.
        gate: [I, H], same dtype; without `up` the fused [2I, H] with the gate's rows first.
        up: [I, H] or None.
        down: [O, I].
        gate_bias, up_bias, down_bias: [I] ([2I] for a fused gate), [I], [O], or None.
        activation: one of `ACTIVATIONS`.
        rounding: "each" rounds after each operation between the products, "last" after the last.
        limit: None, or what cuts the gate from above and up on both sides.
        up_offset: added to up.

    Returns:
        [..., O] in the dtype of x. Sums are in float32 (float64 for float64 inputs).
    """
    if up is None:
        gate, up = gate.chunk(2)
        if gate_bias is not None:
            gate_bias, up_bias = gate_bias.chunk(2)
    round_each: Callable[[torch.Tensor], torch.Tensor] = _rounding_to(x.dtype) if rounding == "each" else _as_it_is
    first, second = _product(x, gate, gate_bias), _product(x, up, up_bias)
    if limit is not None:
        first = round_each(first.clamp(max=limit))
        second = round_each(second.clamp(-limit, limit))
    if up_offset:
        second = round_each(second + up_offset)
    inner = round_each(ACTIVATIONS[activation](first)) * second
    return _product(inner.to(x.dtype), down, down_bias).to(x.dtype)


def mlp_reference(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    transposed: bool = False,
    rounding: str = "each",
) -> torch.Tensor:
    """What an `mlp` kernel must compute: act(x @ up.T) @ down.T of x [..., H], up [I, H], down [O, I].

    With `transposed` the weights are [H, I] and [I, O]. There is one operation between the products, so `rounding`
    changes nothing. The rest is as in `gated_mlp_reference`.
    """
    if transposed:
        up, down = up.T, down.T
    inner = ACTIVATIONS[activation](_product(x, up, up_bias))
    return _product(inner.to(x.dtype), down, down_bias).to(x.dtype)


def gated_mlp_layers(
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
) -> torch.Tensor:
    """`gated_mlp_reference` as a model writes it: linear layers in the dtype of x. A baseline for costs."""
    if up is None:
        first, second = functional.linear(x, gate, gate_bias).chunk(2, dim=-1)
    else:
        first, second = functional.linear(x, gate, gate_bias), functional.linear(x, up, up_bias)
    if limit is not None:
        first, second = first.clamp(max=limit), second.clamp(-limit, limit)
    if up_offset:
        second = second + up_offset
    return functional.linear(ACTIVATIONS[activation](first) * second, down, down_bias)


def mlp_layers(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    transposed: bool = False,
    rounding: str = "each",
) -> torch.Tensor:
    """`mlp_reference` as a model writes it. A baseline for costs."""
    if transposed:
        up, down = up.T, down.T
    return functional.linear(ACTIVATIONS[activation](functional.linear(x, up, up_bias)), down, down_bias)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias in float32 at least, with a value of the dtype of x."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    product = x.to(wide) @ weight.to(wide).T
    if bias is not None:
        product = product + bias.to(wide)
    return product.to(x.dtype).to(wide)


def _rounding_to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.to(dtype).to(value.dtype)


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    return value

"""The one reference for the experts of a mixture: plain torch, any device and float dtype."""

from __future__ import annotations

import torch

from tpu_kernels.ops.activations import ACTIVATIONS


def experts_reference(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
) -> torch.Tensor:
    """What an experts kernel must compute, one token and expert after the other: for reading and not for speed.

    Args:
        hidden: [T, H], float32, bfloat16 or float64.
        indices: integer [T, K]; the experts of each token. An index outside of 0 to E - 1 contributes nothing.
        weights: [T, K], hidden's dtype or float32; what each contribution is multiplied by.
        gate_up: [E, 2I, H], or [E, H, 2I] if `transposed`; [E, I, H] or [E, H, I] if not `gated`.
        down: [E, H, I], or [E, I, H] if `transposed`.
        gate_up_bias: [E, 2I] ([E, I] if not `gated`), or None.
        down_bias: [E, H], or None.
        activation: name of an activation (`tpu_kernels.ops.activations`).
        gated: whether the first product has a gate and an up half.
        transposed: whether weights lie as [in, out].
        interleaved: whether the halves alternate, gate0, up0, gate1, …, and not gate first, then up.
        rounding, limit, up_offset: see `gate`.

    Returns:
        [T, H] in hidden's dtype. Products are summed in float32 (float64 for float64) and rounded to the dtype, then
        the bias is added and the sum is rounded; the contribution is rounded after its weight is applied, to float32
        if the weights are float32; contributions are summed in float32 and rounded once.
    """
    inner = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    result = torch.zeros(hidden.shape, dtype=inner, device=hidden.device)
    for expert in range(gate_up.shape[0]):
        token, place = torch.nonzero(indices == expert, as_tuple=True)
        if not len(token):
            continue
        first, second = gate_up[expert], down[expert]
        if transposed:
            first, second = first.t(), second.t()
        product = _linear(hidden[token], first, None if gate_up_bias is None else gate_up_bias[expert])
        product = gate(
            product,
            activation=activation,
            gated=gated,
            interleaved=interleaved,
            rounding=rounding,
            limit=limit,
            up_offset=up_offset,
        )
        product = _linear(product, second, None if down_bias is None else down_bias[expert])
        result.index_add_(0, token, (product * weights[token, place, None]).to(inner))
    return result.to(hidden.dtype)


def gate(
    product: torch.Tensor,
    *,
    activation: str,
    gated: bool = True,
    interleaved: bool = False,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
) -> torch.Tensor:
    """The activation between the two products: [..., 2I] to [..., I], or [..., I] to [..., I] if not `gated`.

    With a `limit` gate = min(gate, limit) and up = clip(up, -limit, limit); an ungated product counts as a gate. The
    result is act(gate) * (up + up_offset). `rounding` "each": act(gate), the sum and the product are rounded to the
    dtype one by one. "last": all in float32 (float64 for float64), and one rounding at the end.
    """
    dtype = product.dtype
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    between = dtype if rounding == "each" else inner
    if not gated:
        first, up = product, None
    elif interleaved:
        first, up = product[..., ::2], product[..., 1::2]
    else:
        first, up = product.chunk(2, dim=-1)
    if limit is not None:
        first = first.clamp(max=limit)
    result = ACTIVATIONS[activation](first.to(inner)).to(between)
    if up is not None:
        if limit is not None:
            up = up.clamp(-limit, limit)
        up = up.to(between)
        result = result * (up + up_offset if up_offset else up)
    return result.to(dtype)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [N, in] by weight [out, in]: summed in float32 at least, rounded, and rounded again after the bias."""
    inner = torch.float64 if x.dtype == torch.float64 else torch.float32
    product = (x.to(inner) @ weight.to(inner).t()).to(x.dtype)
    return product if bias is None else product + bias.to(x.dtype)

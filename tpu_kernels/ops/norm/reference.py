"""The one reference for RMSNorm and LayerNorm: plain torch, any device and float dtype."""

from __future__ import annotations

import torch


def norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
) -> torch.Tensor:
    """What a norm kernel must compute; the order of its casts is part of the contract.

    Args:
        x: [..., N], float32, bfloat16 or float64.
        weight: None, [N], or [heads, N] for an x [..., heads, N].
        bias: None, or of the weight's shape.
        eps: added to the mean of the squares.
        center: take the mean of each row away first.
        offset: added to the weight.
        order: `round_then_scale`, `scale_then_round` or `round_offset`; see the contract.

    Returns:
        [..., N] in x's dtype. The normalized row is float32 (float64 for float64 inputs).
    """
    inner = torch.float64 if x.dtype == torch.float64 else torch.float32
    normed = x.to(inner)
    if center:
        normed = normed - normed.mean(-1, keepdim=True)
    normed = normed * torch.rsqrt(normed.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)

    if order == "round_then_scale":
        scaled = normed.to(x.dtype) * (offset + weight)
        return scaled if bias is None else scaled + bias
    scale = offset + (weight.to(inner) if order == "scale_then_round" else weight)
    scaled = normed * scale.to(inner)
    return (scaled if bias is None else scaled + bias.to(inner)).to(x.dtype)

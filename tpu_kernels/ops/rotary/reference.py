"""The one reference for rotary position embedding: plain torch, any device and float dtype."""

from __future__ import annotations

import torch


def rotary_reference(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    layout: str = "half",
    rounding: str = "each",
) -> torch.Tensor:
    """What a rotary kernel must compute; the order of its casts is part of the contract.

    Args:
        x: [B, heads, T, D], float32, bfloat16 or float64.
        cos: [B or 1, T, R], x's dtype or float32; R is even and at most D.
        sin: as cos.
        layout: `half` or `interleaved`; see the contract.
        rounding: `each` or `last`; see the contract.

    Returns:
        [B, heads, T, D] in x's dtype. With `last` everything between is float32 (float64 for float64 inputs).
    """
    rotary_dim = cos.shape[-1]
    part, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if layout == "half":
        turned = torch.cat([-part[..., rotary_dim // 2 :], part[..., : rotary_dim // 2]], dim=-1)
    else:
        turned = torch.stack([-part[..., 1::2], part[..., 0::2]], dim=-1).flatten(-2)

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if rounding == "each":
        result = (part * cos).to(x.dtype) + (turned * sin).to(x.dtype)
    else:
        inner = torch.float64 if x.dtype == torch.float64 else torch.float32
        result = (part.to(inner) * cos.to(inner) + turned.to(inner) * sin.to(inner)).to(x.dtype)
    return torch.cat([result, rest], dim=-1)

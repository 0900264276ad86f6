"""The one reference for attention over a static cache: plain torch, any device and float dtype."""

from __future__ import annotations

import torch


def static_attention_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """What a static-attention kernel must compute, written for reading and not for speed.

    Args:
        query: [B, Hq, T, D], float32, bfloat16 or float64.
        key: [B, Hkv, S, D], same dtype; Hq is a multiple of Hkv.
        value: [B, Hkv, S, Dv], same dtype.
        bounds: integer [B, 1, T, 2]; query t of row b sees the keys `bounds[b,0,t,0] <= s < bounds[b,0,t,1]`.
        sinks: [Hq] or None; one extra logit per head in the softmax's denominator.
        scale: factor on the logits.
        softcap: None, or c in `c * tanh(logit / c)`, applied to scaled logits before the mask.

    Returns:
        [B, Hq, T, Dv] in the query's dtype. Everything between is computed in float32 (float64 for
        float64 inputs). A query whose interval is empty gives zeros, with or without sinks.
    """
    group = query.shape[1] // key.shape[1]
    inner = torch.float64 if query.dtype == torch.float64 else torch.float32
    keys = key.to(inner).repeat_interleave(group, dim=1)
    values = value.to(inner).repeat_interleave(group, dim=1)

    logits = query.to(inner) @ keys.transpose(-1, -2) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    position = torch.arange(key.shape[2], device=key.device)
    valid = (position >= bounds[..., 0:1]) & (position < bounds[..., 1:2])  # [B, 1, T, S]
    logits = logits.masked_fill(~valid, float("-inf"))
    if sinks is not None:
        extra = sinks.to(inner).reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, extra], dim=-1)

    # An empty row has no finite logit: a maximum of 0 keeps exp(-inf - max) at 0 and not NaN.
    peak = logits.amax(dim=-1, keepdim=True)
    weights = torch.exp(logits - torch.where(torch.isfinite(peak), peak, torch.zeros_like(peak)))
    total = weights.sum(dim=-1, keepdim=True)
    weights = weights / torch.where(total == 0, torch.ones_like(total), total)
    return (weights[..., : key.shape[2]] @ values).to(query.dtype)

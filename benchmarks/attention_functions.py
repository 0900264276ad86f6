"""What the attention kernel is measured against: XLA's best in torch, and JAX's splash attention."""

from __future__ import annotations

from typing import Any


def grouped_attention(query: Any, key: Any, value: Any, bounds: Any, *, scale: float) -> Any:
    """Attention over a static cache in plain torch, with query heads grouped by key/value head: no repeated cache.

    query [B, Hq, T, D]; key, value [B, Hkv, S, D]; bounds int32 [B, 1, T, 2]. Products in the dtype of the inputs,
    softmax in float32.
    """
    import torch

    batch, heads, tokens, width = query.shape
    kv_heads, length = key.shape[1:3]
    rows = query.reshape(batch, kv_heads, heads // kv_heads * tokens, width)
    logits = (rows @ key.transpose(2, 3)).float() * scale
    position = torch.arange(length, device=query.device)
    valid = (position >= bounds[..., :1]) & (position < bounds[..., 1:])
    logits = logits.reshape(batch, kv_heads, heads // kv_heads, tokens, length)
    weights = torch.softmax(logits.masked_fill(~valid[:, :, None], -1e30), dim=-1).to(value.dtype)
    mixed = weights.reshape(batch, kv_heads, -1, length) @ value
    return mixed.reshape(batch, heads, tokens, width)


def splash(query: Any, key: Any, value: Any) -> Any:
    """Causal attention among new tokens by JAX's splash attention: query [B, Hq, T, D]; key, value [B, Hkv, T, D]."""
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    heads, tokens, width = query.shape[1:]
    mask = splash_attention.MultiHeadMask([splash_attention.CausalMask((tokens, tokens)) for _ in range(heads)])
    block = min(512, tokens)
    sizes = splash_attention.BlockSizes(block_q=block, block_kv=block, block_kv_compute=block)
    kernel = splash_attention.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    return jax.vmap(kernel)(query * width**-0.5, key, value)

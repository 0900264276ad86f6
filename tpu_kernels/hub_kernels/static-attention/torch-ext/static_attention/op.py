"""The torch side: one custom operator over the JAX kernel, its fake and its CPU implementation."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch

# When this package is loaded from the Hub its name is the build's unique id, so that two builds can
# live in one process. The hash of the kernel's sources keeps compile caches apart, which know an
# operator by its name and never see its body.
_NAMESPACE = (__package__ or "static_attention").replace(".", "_")
_SOURCES = [Path(__file__).with_name(name).read_bytes() for name in ("blocks.py", "kernel.py")]
_SOURCE_HASH = hashlib.sha256(b"".join(_SOURCES)).hexdigest()[:12]


def _output_shape(query: torch.Tensor, value: torch.Tensor) -> tuple[Any, ...]:
    return (*query.shape[:3], value.shape[3])


def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    sinks: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    return query.new_empty(_output_shape(query, value))


def _on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    **_: Any,
) -> torch.Tensor:
    batch, heads, queries, _width = query.shape
    grouped = query.float().reshape(batch, key.shape[1], heads // key.shape[1], queries, -1)
    logits = torch.einsum("bhgtd,bhsd->bhgts", grouped, key.float()).mul_(scale).flatten(1, 2)
    if softcap is not None:
        logits = logits.div_(softcap).tanh_().mul_(softcap)
    position = torch.arange(key.shape[2])
    hidden = (position < bounds[..., :1]) | (position >= bounds[..., 1:])
    logits = logits.masked_fill_(hidden, -torch.inf)
    norm = logits.logsumexp(-1, keepdim=True)
    if sinks is not None:
        norm = torch.logaddexp(norm, sinks.float().reshape(1, -1, 1, 1))
    weights = torch.exp(logits - norm.clamp_min(torch.finfo(torch.float32).min))
    weights = weights.reshape(batch, key.shape[1], -1, queries, key.shape[2])
    mixed = torch.einsum("bhgts,bhsd->bhgtd", weights, value.float())
    return mixed.reshape(_output_shape(query, value)).to(query.dtype)


def _register() -> tuple[Any, str]:
    """The operator, or None and why there is none."""
    if getattr(torch, "tpu", None) is None:
        return None, "torch has no `torch.tpu`: torch_tpu is not installed, or was not loaded with torch"
    try:
        from torch.tpu.pallas import jax_op
    except ImportError as error:
        return None, f"torch.tpu.pallas cannot be imported: {error}"
    from .kernel import attend

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*jax_op is experimental.*")
        operator = jax_op(f"{_NAMESPACE}::static_attention_{_SOURCE_HASH}", attend)
    operator.register_fake(_fake)
    operator.register_kernel("cpu")(_on_cpu)
    return operator, ""


_OPERATOR, _WHY_NOT = _register()


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    sinks: torch.Tensor | None,
) -> None:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError(
            "static_attention needs query [B, Hq, T, D], key [B, Hkv, S, D] and value [B, Hkv, S, Dv]; "
            f"got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    batch, heads, queries, width = query.shape
    if key.shape[:3] != value.shape[:3] or key.shape[0] != batch or key.shape[3] != width:
        raise ValueError(
            f"static_attention needs key [{batch}, Hkv, S, {width}] and value [{batch}, Hkv, S, Dv] "
            f"for a query of shape {tuple(query.shape)}; got {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if heads % key.shape[1] != 0:
        raise ValueError(
            "static_attention needs a number of query heads that is a multiple of the key/value heads; "
            f"got {heads} and {key.shape[1]}"
        )
    if not query.dtype == key.dtype == value.dtype or query.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            "static_attention needs query, key and value of one dtype, float32 or bfloat16; "
            f"got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if bounds.dtype != torch.int32 or tuple(bounds.shape) != (batch, 1, queries, 2):
        raise ValueError(
            f"static_attention needs int32 bounds of shape [{batch}, 1, {queries}, 2]; "
            f"got {bounds.dtype} {tuple(bounds.shape)}"
        )
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(f"static_attention needs sinks of shape [{heads}]; got {tuple(sinks.shape)}")


def static_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
    num_buffers: int | None = None,
) -> torch.Tensor:
    """Attention of some new queries over a whole static key/value cache.

    Reads only the key blocks that some query of a step can see. Runs on TPU tensors, eagerly or inside
    `torch.compile(backend="tpu", fullgraph=True)`, and on CPU tensors in plain torch. No gradient.

    Args:
        query: [B, Hq, T, D], float32 or bfloat16. T = 1 is a decode step.
        key: [B, Hkv, S, D], same dtype; query head h reads key/value head h // (Hq // Hkv).
        value: [B, Hkv, S, Dv], same dtype.
        bounds: int32 [B, 1, T, 2]; query t of row b sees the keys bounds[b,0,t,0] <= s < bounds[b,0,t,1].
            Causal order, left padding and sliding windows are all said so. An empty interval gives zeros.
        sinks: [Hq] or None; one extra logit per head in the softmax's denominator.
        scale: factor on the logits.
        softcap: None, or c in c * tanh(logit / c), after the scale and before the mask.
        block_q, block_k, num_buffers: tuning; None picks sizes that fit every TPU generation.

    Returns:
        [B, Hq, T, Dv] in the query's dtype.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        RuntimeError: tensors on a device for which there is no implementation here.
    """
    _check(query, key, value, bounds, sinks)
    tuning = {"block_q": block_q, "block_k": block_k, "num_buffers": num_buffers}
    if _OPERATOR is not None:
        return _OPERATOR(query, key, value, bounds, sinks, scale=scale, softcap=softcap, **tuning)
    if query.device.type == "cpu":
        return _on_cpu(query, key, value, bounds, sinks, scale=scale, softcap=softcap)
    raise RuntimeError(
        f"static_attention has no implementation for tensors on `{query.device}` here.\n"
        "  Needs: torch_tpu and jax beside torch\n"
        f"  Got:   {_WHY_NOT}\n"
        "  Next:  install torch_tpu and jax, and let torch load its device backends "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD unset)"
    )

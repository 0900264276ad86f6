"""The attention function of an enabled model, as transformers' attention interface calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tpu_kernels.runtime.dispatch import LayerDispatch
from tpu_kernels.runtime.masks import expand_bounds, interval_mask, is_bounds

IMPLEMENTATION = "tpu_pallas"
"""Our name in transformers' interfaces. It avoids `sdpa`, `flash` and `flex`, on which transformers matches."""

LAYER_ATTRIBUTE = "_tpu_kernels_layer"

_KNOWN_ARGUMENTS = frozenset(
    {"scaling", "dropout", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "use_cache"}
)


def register_interfaces() -> None:
    """Make the attention and the mask interface known to transformers, both under one name."""
    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, interval_mask)


def _eager_attention(module: torch.nn.Module) -> Callable[..., Any] | None:
    home = sys.modules.get(type(module).__module__)
    return getattr(home, "eager_attention_forward", None)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)


def fallback_name(layer: LayerDispatch, softcap: float | None, sinks: torch.Tensor | None) -> str:
    """SDPA drops sinks silently and refuses a softcap: such calls go to the module's own eager attention."""
    return "eager" if softcap is not None or sinks is not None else layer.fallback


def run_fallback(
    name: str,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as the model does it without us; bounds are expanded into the mask that it expects."""
    mask = attention_mask
    if is_bounds(mask, batch_size=query.shape[0], q_length=query.shape[2]) and mask is not None:
        mask = expand_bounds(mask, key.shape[2])
    eager = _eager_attention(module)
    if name == "eager" and eager is not None:
        if mask is not None and mask.dtype == torch.bool:
            mask = _additive(mask, query.dtype)
        output: tuple[torch.Tensor, torch.Tensor | None] = eager(module, query, key, value, mask, **kwargs)
        return output
    function = ALL_ATTENTION_FUNCTIONS[name if name != "eager" else "sdpa"]
    result: tuple[torch.Tensor, torch.Tensor | None] = function(module, query, key, value, mask, **kwargs)
    return result


def _obstacle(
    module: torch.nn.Module,
    query: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    extra: tuple[str, ...],
) -> str | None:
    """What in the call itself, apart from shapes, keeps it from any kernel."""
    if module.training:
        return "the model is in training mode"
    if torch.is_grad_enabled() and query.requires_grad:
        return "gradients are wanted (torch.no_grad() or torch.inference_mode() allows the kernel)"
    if dropout:
        return f"dropout = {dropout}"
    if extra:
        return f"arguments that no kernel takes: {', '.join(extra)}"
    if attention_mask is None:
        return "no mask was passed"
    if not is_bounds(attention_mask, batch_size=query.shape[0], q_length=query.shape[2]):
        return "the mask is not an interval of keys in every row"
    return None


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of one layer: its kernel where that covers the call, else its fallback.

    query [batch, heads, queries, head_dim], key [batch, kv_heads, keys, head_dim], value [batch, kv_heads, keys,
    value_head_dim]; attention_mask as `interval_mask` returned it, or a user's own matrix. Returns [batch, queries,
    heads, value_head_dim] in query's dtype, and attention weights where an eager fallback gives them.
    """
    layer: LayerDispatch = getattr(module, LAYER_ATTRIBUTE)
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    extra = tuple(
        name for name, given in kwargs.items() if name not in _KNOWN_ARGUMENTS and isinstance(given, torch.Tensor)
    )
    features = ["causal"]
    if query.shape[1] != key.shape[1]:
        features.append("multi_query" if key.shape[1] == 1 else "grouped_heads")
    if key.shape[-1] != value.shape[-1]:
        features.append("value_head_dim")
    if softcap is not None:
        features.append("softcap")
    if sinks is not None:
        features.append("sinks")
    fallback = fallback_name(layer, softcap, sinks)
    use_kernel = layer.decide(
        type(module).__name__,
        str(query.dtype).removeprefix("torch."),
        (
            ("head_dim", int(query.shape[3])),
            ("value_head_dim", int(value.shape[3])),
            ("query_length", int(query.shape[2])),
            ("key_length", int(key.shape[2])),
        ),
        tuple(features),
        _obstacle(module, query, attention_mask, float(kwargs.get("dropout") or 0.0), extra),
        fallback,
        torch.compiler.is_compiling(),
    )
    if not use_kernel:
        return run_fallback(fallback, module, query, key, value, attention_mask, **kwargs)
    scaling = kwargs.get("scaling")
    output = layer.call_kernel(
        query,
        key,
        value,
        attention_mask,
        sinks,
        scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        softcap=None if softcap is None else float(softcap),
    )
    return output.transpose(1, 2).contiguous(), None

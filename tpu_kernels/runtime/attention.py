"""The attention function of an enabled model, as transformers' attention interface calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tpu_kernels.runtime.dispatch import LAYER_ATTRIBUTE, LayerDispatch
from tpu_kernels.runtime.masks import expand_bounds, interval_mask, is_bounds

IMPLEMENTATION = "tpu_pallas"
"""Our name in transformers' interfaces. It avoids `sdpa`, `flash` and `flex`, on which transformers matches."""

_KNOWN_ARGUMENTS = frozenset(
    {"scaling", "dropout", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "use_cache"}
)


def register_interfaces() -> None:
    """Make the attention and the mask interface known to transformers, both under one name."""
    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, interval_mask)


def _eager_attention(module: torch.nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that the module's class is written in; ours where it has none."""
    home = sys.modules.get(type(module).__module__)
    function: Callable[..., Any] = getattr(home, "eager_attention_forward", plain_attention)
    return function


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in plain torch with an additive mask, softcap and sinks; arguments as `attention_forward`."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if attention_mask is not None:
        logits = logits + attention_mask
    if s_aux is not None:
        sink = s_aux.reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat((logits, sink.to(logits.dtype)), dim=-1)
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32)[..., : key.shape[2]].to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)


def fallback_name(usual: str, softcap: float | None, sinks: torch.Tensor | None) -> str:
    """SDPA drops sinks silently and refuses a softcap: such calls go to the module's own eager attention."""
    return "eager" if softcap is not None or sinks is not None else usual


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
    if name == "eager":
        if mask is not None and mask.dtype == torch.bool:
            mask = _additive(mask, query.dtype)
        function = _eager_attention(module)
    else:
        function = ALL_ATTENTION_FUNCTIONS[name]
    output: tuple[torch.Tensor, torch.Tensor | None] = function(module, query, key, value, mask, **kwargs)
    return output


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
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    layer: LayerDispatch | None = getattr(module, LAYER_ATTRIBUTE, None)
    if layer is None:
        name = fallback_name("sdpa", softcap, sinks)
        return run_fallback(name, module, query, key, value, attention_mask, **kwargs)
    extra = tuple(
        name for name, given in kwargs.items() if name not in _KNOWN_ARGUMENTS and isinstance(given, torch.Tensor)
    )
    features = ["causal", "left_padding"]
    if kwargs.get("sliding_window") is not None:
        features.append("sliding_window")
    if query.shape[1] != key.shape[1]:
        features.append("multi_query" if key.shape[1] == 1 else "grouped_heads")
    if key.shape[-1] != value.shape[-1]:
        features.append("value_head_dim")
    if softcap is not None:
        features.append("softcap")
    if sinks is not None:
        features.append("sinks")
    fallback = fallback_name(layer.fallback, softcap, sinks)
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
        "decode" if query.shape[2] == 1 else "prefill",
        torch.compiler.is_dynamo_compiling(),
    )
    if not use_kernel:
        return run_fallback(fallback, module, query, key, value, attention_mask, **kwargs)
    scaling = kwargs.get("scaling")
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    cap = None if softcap is None else float(softcap)
    if torch.compiler.is_dynamo_compiling():
        output = layer.call_kernel(query, key, value, attention_mask, sinks, scale=scale, softcap=cap)
    else:
        tried = layer.try_kernel(query, key, value, attention_mask, sinks, scale=scale, softcap=cap)
        if tried is None:
            layer.note_fallback(fallback)
            return run_fallback(fallback, module, query, key, value, attention_mask, **kwargs)
        output = tried
    return output.transpose(1, 2).contiguous(), None

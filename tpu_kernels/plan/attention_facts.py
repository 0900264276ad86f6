"""What is known of an attention layer before it is called: read from the module, then from its config."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

from tpu_kernels.plan.match import LayerFacts


def _first_int(*candidates: Any) -> int | None:
    return next((int(value) for value in candidates if isinstance(value, int) and value > 0), None)


def _setting(module: torch.nn.Module, config: PreTrainedConfig, name: str) -> Any:
    """A value of the config for this layer, or None; where layers differ, of the layer's own part of it."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers refuses to answer for all layers at once
        own: Any = config.per_layer_config[module.layer_idx]
        return getattr(own, name, None)


def _head_sizes(module: torch.nn.Module, config: PreTrainedConfig) -> dict[str, int]:
    heads, hidden = _setting(module, config, "num_attention_heads"), _setting(module, config, "hidden_size")
    head_dim = _first_int(
        getattr(module, "qk_head_dim", None),
        getattr(module, "head_dim", None),
        _setting(module, config, "head_dim"),
        hidden // heads if isinstance(hidden, int) and isinstance(heads, int) else None,
    )
    value_head_dim = _first_int(getattr(module, "v_head_dim", None), head_dim)
    sizes = {"head_dim": head_dim, "value_head_dim": value_head_dim}
    return {name: size for name, size in sizes.items() if size is not None}


def attention_facts(module: torch.nn.Module, config: PreTrainedConfig, dtype: torch.dtype) -> LayerFacts:
    """Class, dtype, head sizes and features of an attention module that carries `config`."""
    heads = _setting(module, config, "num_attention_heads")
    sizes = _head_sizes(module, config)
    # A mask says at run time alone whether rows are padded, so every causal layer needs a kernel that can.
    features = {"causal", "left_padding"} if getattr(module, "is_causal", True) else {"bidirectional"}
    groups = getattr(module, "num_key_value_groups", None)
    if (_setting(module, config, "num_key_value_heads") or heads) == 1 and heads != 1:
        features.add("multi_query")
    elif isinstance(groups, int) and groups > 1:
        features.add("grouped_heads")
    if sizes.get("head_dim") != sizes.get("value_head_dim"):
        features.add("value_head_dim")
    if isinstance(getattr(module, "sinks", None), torch.Tensor):
        features.add("sinks")
    softcap = getattr(module, "attn_logit_softcapping", None) or _setting(module, config, "attn_logit_softcapping")
    if softcap is not None:
        features.add("softcap")
    if getattr(module, "sliding_window", None) is not None:
        features.add("sliding_window")
    return LayerFacts(
        class_name=type(module).__name__,
        dtype=str(dtype).removeprefix("torch."),
        sizes=sizes,
        features=frozenset(features),
    )

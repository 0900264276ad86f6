"""Whether a generate call takes the static route (chunked prefill, decode steps, our cache) or the plain way."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMode

from tpu_kernels.runtime.kv_cache import KernelCache

_STATIC_MODES = frozenset(
    {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE}
)
_STATIC_CACHES = frozenset({None, "static", "hybrid"})
_PER_TOKEN = frozenset({"input_ids", "attention_mask", "position_ids", "token_type_ids"})
_MODE_ARGUMENTS = frozenset({"tokenizer", "assistant_tokenizer"})


def bound_arguments(model: PreTrainedModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one generate call by name, its `**kwargs` among them."""
    bound = inspect.signature(type(model).generate).bind_partial(model, *args, **kwargs)
    named = dict(bound.arguments)
    named.pop("self", None)
    rest = named.pop("kwargs", {})
    return {**named, **rest}


def resolved_config(model: PreTrainedModel, arguments: Mapping[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    """The generation config that a call ends up with, and what it passes on to the model."""
    own = inspect.signature(type(model).generate).parameters
    rest = {name: value for name, value in arguments.items() if name not in own and name not in _MODE_ARGUMENTS}
    config, model_kwargs = model._prepare_generation_config(arguments.get("generation_config"), **rest)
    return config, model_kwargs


def plain_reason(model: PreTrainedModel, arguments: Mapping[str, Any]) -> str | None:
    """Why this call has to run the plain way, or None where the static route does what it asks for."""
    if model.training:
        return "the model is in training mode"
    if arguments.get("assistant_model") is not None:
        return "assisted generation"
    if arguments.get("custom_generate") is not None:
        return "a custom generate function"
    if arguments.get("synced_gpus"):
        return "synced_gpus"
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"{type(model).__name__} does not compile as one graph (its _can_compile_fullgraph is False)"
    config, passed_on = resolved_config(model, arguments)
    mode = config.get_generation_mode(None)
    if mode not in _STATIC_MODES:
        return f"{mode.value.replace('_', ' ')}"
    if config.use_cache is False:
        return "use_cache=False"
    if config.cache_implementation not in _STATIC_CACHES:
        return f"cache_implementation={config.cache_implementation!r}"
    for flag in ("output_attentions", "output_hidden_states"):
        if getattr(config, flag, False):
            return flag
    if config.guidance_scale not in (None, 1):
        return f"guidance_scale={config.guidance_scale}"
    if config.prompt_lookup_num_tokens or config.token_healing:
        return "a mode that rewrites the prompt"
    cache = passed_on.pop("past_key_values", None)
    if cache is not None and not isinstance(cache, KernelCache):
        return f"a cache of the caller's own ({type(cache).__name__})"
    foreign = sorted(
        name
        for name, value in passed_on.items()
        if name not in _PER_TOKEN and (isinstance(value, torch.Tensor) or name == "inputs_embeds")
    )
    if foreign:
        return f"inputs besides the tokens: {', '.join(foreign)}"
    return None

"""What each layer of a model caches, learnt from a forward that computes nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from tpu_kernels.runtime.kv_cache import LayerShape


@dataclass(frozen=True)
class CacheShapes:
    """Shapes per layer and the dtype of the cached states; or, in `obstacle`, why our cache cannot hold them."""

    layers: tuple[LayerShape, ...] = ()
    dtype: torch.dtype = torch.float32
    obstacle: str | None = None


def probe_cache_shapes(model: PreTrainedModel) -> CacheShapes:
    """Run one token through `model` with fake tensors and read off what its attention layers cached.

    Head counts come from the tensors themselves, so they are a shard's own under tensor parallelism.
    """
    if model.config.is_encoder_decoder:
        return CacheShapes(obstacle="encoder-decoder models have a second cache")
    config = model.config.get_text_config(decoder=True)
    try:
        kinds = {type(layer) for layer in StaticCache(config=config, max_cache_len=8).layers}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return CacheShapes(obstacle=f"transformers makes no static cache for it ({error})")
    foreign = kinds - {StaticLayer, StaticSlidingWindowLayer}
    if foreign:
        names = ", ".join(sorted(kind.__name__ for kind in foreign))
        return CacheShapes(obstacle=f"its cache has layers that hold more than keys and values ({names})")
    try:
        layers = _probe(model, config)
    except Exception as error:
        return CacheShapes(obstacle=f"its forward cannot be traced without data ({str(error).splitlines()[0][:200]})")
    if not all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        return CacheShapes(obstacle="its cache has layers that hold more than keys and values")
    if not all(layer.is_initialized for layer in layers):
        return CacheShapes(obstacle="some of its layers cache nothing")
    shapes = tuple(LayerShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1]) for layer in layers)
    dtypes = {layer.keys.dtype for layer in layers} | {layer.values.dtype for layer in layers}
    if len(dtypes) != 1:
        return CacheShapes(obstacle=f"its layers cache several dtypes ({', '.join(map(str, dtypes))})")
    return CacheShapes(shapes, dtypes.pop())


def _probe(model: PreTrainedModel, config: PreTrainedConfig) -> list[Any]:
    """The cache layers after one fake token. Forward hooks of the user's own stay out of it; those of tensor
    parallelism shape what is cached, and stay in."""
    cache = DynamicCache(config=config)
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    quiet = nullcontext() if (getattr(model, "_tp_size", None) or 1) > 1 else _without_forward_hooks(model)
    with quiet, torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        model(input_ids=token, past_key_values=cache, use_cache=True)
    return list(cache.layers)


@contextmanager
def _without_forward_hooks(model: torch.nn.Module) -> Iterator[None]:
    names = ("_forward_hooks", "_forward_pre_hooks")
    kept = [(module, name, vars(module)[name]) for module in model.modules() for name in names]
    for module, name, _ in kept:
        vars(module)[name] = OrderedDict()
    try:
        yield
    finally:
        for module, name, hooks in kept:
            vars(module)[name] = hooks

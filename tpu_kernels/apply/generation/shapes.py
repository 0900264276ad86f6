"""What each layer of a model caches, learnt from a forward that computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, PreTrainedModel
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
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        cache = DynamicCache(config=config)
        token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        model(input_ids=token, past_key_values=cache, use_cache=True)
        layers = cache.layers
        if not all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
            return CacheShapes(obstacle="its cache has layers that hold more than keys and values")
        if not all(layer.is_initialized for layer in layers):
            return CacheShapes(obstacle="some of its layers cache nothing")
        shapes = tuple(
            LayerShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1]) for layer in layers
        )
        dtypes = {layer.keys.dtype for layer in layers} | {layer.values.dtype for layer in layers}
    if len(dtypes) != 1:
        return CacheShapes(obstacle=f"its layers cache several dtypes ({', '.join(map(str, dtypes))})")
    return CacheShapes(shapes, dtypes.pop())

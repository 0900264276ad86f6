"""What each layer of a model caches, learnt from a forward that computes nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from tpu_kernels.runtime.kv_cache import LayerShape


@dataclass(frozen=True)
class CacheShapes:
    """What each layer caches, and in which dtype; or, in `obstacle`, why our cache cannot serve the model.

    A layer that is None keeps transformers' own cache layer, because it holds more than keys and values (recurrent or
    convolutional state, an index). Padding is not invisible there.
    """

    layers: tuple[LayerShape | None, ...] = ()
    dtype: torch.dtype = torch.float32
    obstacle: str | None = None

    @property
    def hides_padding(self) -> bool:
        """Whether tokens behind the cached length leave no trace, in every layer."""
        return None not in self.layers

    @property
    def ours(self) -> tuple[LayerShape, ...]:
        return tuple(layer for layer in self.layers if layer is not None)


def probe_cache_shapes(model: PreTrainedModel) -> CacheShapes:
    """Run one token through `model` with fake tensors and read off what its attention layers cached.

    Head counts come from the tensors themselves, so they are a shard's own under tensor parallelism.
    """
    if model.config.is_encoder_decoder:
        return CacheShapes(obstacle="encoder-decoder models have a second cache")
    moving = _rotary_that_moves(model)
    if moving is not None:
        return CacheShapes(obstacle=f"its rotary frequencies change with the length of the text (rope_type {moving})")
    config = model.config.get_text_config(decoder=True)
    try:
        static = StaticCache(config=config, max_cache_len=8).layers
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return CacheShapes(obstacle=f"transformers makes no static cache for it ({error})")
    ours = [type(layer) in (StaticLayer, StaticSlidingWindowLayer) for layer in static]
    if not any(ours):
        return CacheShapes(obstacle="no layer of it caches keys and values alone")
    for layer in static:
        if isinstance(layer, StaticSlidingWindowLayer) and type(layer) is not StaticSlidingWindowLayer:
            return CacheShapes(obstacle=f"its cache counts tokens in Python ({type(layer).__name__})")
    try:
        layers = _probe(model, config)
    except Exception as error:
        return CacheShapes(obstacle=f"its forward cannot be traced without data ({str(error).splitlines()[0][:200]})")
    if len(layers) != len(static):
        return CacheShapes(obstacle=f"it has {len(static)} static cache layers and {len(layers)} dynamic ones")
    kept = [layer for layer, is_ours in zip(layers, ours, strict=True) if is_ours]
    if not all(layer.is_initialized for layer in kept):
        return CacheShapes(obstacle="some of its layers cache nothing")
    dtypes = {layer.keys.dtype for layer in kept} | {layer.values.dtype for layer in kept}
    if len(dtypes) != 1:
        return CacheShapes(obstacle=f"its layers cache several dtypes ({', '.join(map(str, dtypes))})")
    shapes = tuple(_shape(layer) if is_ours else None for layer, is_ours in zip(layers, ours, strict=True))
    return CacheShapes(shapes, dtypes.pop())


def layers_in_use(model: PreTrainedModel) -> int | None:
    """Layers that the model runs by its config: early exit lets it assist itself with its first ones."""
    layers: int | None = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    return layers


def _shape(layer: DynamicLayer) -> LayerShape:
    return LayerShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1])


def _rotary_that_moves(model: PreTrainedModel) -> str | None:
    """The rope type of a rotary embedding that chooses its frequencies by the largest position in the batch.

    A prompt in chunks, or with padding behind it, would get other frequencies than the whole prompt.
    """
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        for name in types.values() if isinstance(types, dict) else [types]:
            if isinstance(name, str) and ("dynamic" in name or name == "longrope"):
                return name
    return None


def _probe(model: PreTrainedModel, config: PreTrainedConfig) -> list[Any]:
    """The cache layers after one fake token. Forward hooks of the user's own stay out of it."""
    cache = DynamicCache(config=config)
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    with _untouched(model), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        model(input_ids=token, past_key_values=cache, use_cache=True)
    return list(cache.layers)


_PADDING_WARNING = "warn_if_padding_and_no_attention_mask"


@contextmanager
def _untouched(model: torch.nn.Module) -> Iterator[None]:
    """Whatever a forward stores on its modules is gone afterwards: here it would be a tensor without data. Inside,
    no model looks for padding among its tokens, which have no values."""
    kept = [(module, dict(vars(module)), dict(module._buffers), dict(module._parameters)) for module in model.modules()]
    for module, *_ in kept:
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            vars(module)[name] = OrderedDict()
        if hasattr(module, _PADDING_WARNING):
            vars(module)[_PADDING_WARNING] = lambda *_: None
    try:
        yield
    finally:
        for module, attributes, buffers, parameters in kept:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
            module._parameters.clear()
            module._parameters.update(parameters)

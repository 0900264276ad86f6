"""A static key/value cache that neither recompiles nor waits for the device.

transformers' sliding static layer counts its tokens with a Python int, which a static-shape compile guards on: every
decoded token then needs a new program. Here each layer is full length and counts with a device tensor; windows are
the business of the mask. A mirror of the length on the host lets masks and positions be prepared without reading the
device; it is dropped (None) as soon as a graph that we did not start writes into the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig, cache_utils


@dataclass(frozen=True)
class LayerShape:
    """What one layer caches per token: `heads` keys of `key_dim` and values of `value_dim` elements (local heads)."""

    heads: int
    key_dim: int
    value_dim: int

    def elements(self, batch_size: int, max_cache_len: int) -> int:
        return batch_size * max_cache_len * self.heads * (self.key_dim + self.value_dim)


class KernelCacheLayer(cache_utils.StaticLayer):  # type: ignore[misc]
    """Keys `[batch, heads, max_cache_len, key_dim]` and values of one layer, written in place at a device counter."""

    host_length: int | None
    max_cache_len: int

    def __init__(
        self,
        max_cache_len: int,
        batch_size: int,
        shape: LayerShape,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(max_cache_len=max_cache_len)
        self.dtype, self.device = dtype, device
        self.batch_size, self.num_heads = batch_size, shape.heads
        self.k_head_dim, self.v_head_dim = shape.key_dim, shape.value_dim
        lead = (batch_size, shape.heads, max_cache_len)
        # Tensors made in inference mode could not be written outside of it, where a returned cache is continued.
        with torch.inference_mode(False):
            self.keys = torch.zeros((*lead, shape.key_dim), dtype=dtype, device=device)
            self.values = torch.zeros((*lead, shape.value_dim), dtype=dtype, device=device)
            self.cumulative_length = torch.zeros(1, dtype=torch.int64).to(device)
        self.host_length = 0
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[batch, heads, new, dim]` states behind the cached ones; returns the whole buffers."""
        new = key_states.shape[-2]
        position = torch.arange(new, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(new)
        self.keys.index_copy_(2, position, key_states)
        self.values.index_copy_(2, position, value_states)
        if torch.compiler.is_dynamo_compiling():
            self.host_length = None
        elif self.host_length is not None:
            self.host_length += new
        return self.keys, self.values

    def get_seq_length(self) -> int | torch.Tensor:
        """Tokens cached: a host int when it is known without asking the device, else a device tensor `[1]`."""
        if torch.compiler.is_dynamo_compiling() or self.host_length is None:
            return self.cumulative_length
        return self.host_length

    def set_length(self, length: int) -> None:
        """Declare that `length` tokens are cached; later writes go behind them."""
        self.cumulative_length.copy_(torch.full((1,), length, dtype=torch.int64))
        self.host_length = length

    def grow(self, max_cache_len: int) -> None:
        """Make room for `max_cache_len` tokens; what is cached stays."""
        missing = (0, 0, 0, max_cache_len - self.max_cache_len)
        with torch.inference_mode(False):
            self.keys, self.values = F.pad(self.keys, missing), F.pad(self.values, missing)
        self.max_cache_len = max_cache_len

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens. Raises ValueError for a positive number, as transformers does."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of tokens to remove, got {tokens_to_remove}")
        if tokens_to_remove:
            self.set_length(max(int(self.get_seq_length()) + tokens_to_remove, 0))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row `repeats` times."""
        with torch.inference_mode(False):
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)
        self.batch_size *= repeats

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows alone."""
        with torch.inference_mode(False):
            self.keys, self.values = self.keys[indices, ...], self.values[indices, ...]
        self.batch_size = self.keys.shape[0]

    def reset(self) -> None:
        self.keys.zero_()
        self.values.zero_()
        self.set_length(0)


class KernelCache(cache_utils.StaticCache):  # type: ignore[misc]
    """A `StaticCache` whose key/value layers are `KernelCacheLayer`s, allocated at once: so prefill can be compiled.

    A shape that is None leaves transformers' own layer, made for `config`, in that place.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape | None],
        *,
        batch_size: int,
        max_cache_len: int,
        dtype: torch.dtype,
        device: torch.device,
        config: PreTrainedConfig | None = None,
    ) -> None:
        layers: list[Any] = [
            None if shape is None else KernelCacheLayer(max_cache_len, batch_size, shape, dtype, device)
            for shape in shapes
        ]
        if None in layers:
            own = cache_utils.StaticCache(config=config, max_cache_len=max_cache_len).layers
            layers = [theirs if ours is None else ours for ours, theirs in zip(layers, own, strict=True)]
        cache_utils.Cache.__init__(self, layers=layers)
        self.hides_padding = None not in shapes

    def _ours(self) -> list[KernelCacheLayer]:
        return [layer for layer in self.layers if isinstance(layer, KernelCacheLayer)]

    def host_length(self) -> int:
        """Tokens cached, as an int; asks the device only if a foreign graph wrote last."""
        return int(self._ours()[0].get_seq_length())

    def note_length(self, length: int) -> None:
        """Tell the host mirror what a graph of ours has just written."""
        for layer in self._ours():
            layer.host_length = length

    def grow(self, max_cache_len: int) -> None:
        """Make room for `max_cache_len` tokens, in place; what is cached stays.

        Raises ValueError where some layer is not ours.
        """
        if not self.hides_padding:
            raise ValueError("a cache with layers that hold more than keys and values cannot grow")
        for layer in self._ours():
            layer.grow(max_cache_len)

    def set_length(self, length: int) -> None:
        """Cut every layer back to `length` tokens; what lies behind is overwritten later.

        Raises ValueError where some layer cannot forget.
        """
        if not self.hides_padding:
            raise ValueError("a cache with layers that hold more than keys and values cannot be cut back")
        for layer in self._ours():
            layer.set_length(length)


def cache_bytes(shapes: Sequence[LayerShape], *, batch_size: int, max_cache_len: int, dtype: torch.dtype) -> int:
    """Bytes that a `KernelCache` of these arguments takes on one device."""
    return sum(shape.elements(batch_size, max_cache_len) for shape in shapes) * dtype.itemsize

"""Whether a cache fits the chip, asked before it is allocated."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tpu_kernels.chips import ChipInfo
from tpu_kernels.errors import CacheTooLargeError, explain
from tpu_kernels.plan.tp.memory import FOR_PROGRAMS
from tpu_kernels.runtime.bridge import device_bytes
from tpu_kernels.runtime.kv_cache import LayerShape, cache_bytes


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def check_cache_fits(
    model: torch.nn.Module,
    shapes: Sequence[LayerShape],
    *,
    chip: ChipInfo | None,
    batch_size: int,
    max_cache_len: int,
    dtype: torch.dtype,
) -> None:
    """Raise CacheTooLargeError where weights and cache exceed the chip's memory; an unknown chip is not checked."""
    if chip is None:
        return
    cache = cache_bytes(shapes, batch_size=batch_size, max_cache_len=max_cache_len, dtype=dtype)
    weights = device_bytes(model)
    room = chip.usable_hbm_bytes * (1 - FOR_PROGRAMS)
    if weights + cache <= room:
        return
    per_token = cache // max_cache_len
    longest = int((room - weights) // per_token) if room > weights and per_token else 0
    raise CacheTooLargeError(
        explain(
            f"the key/value cache does not fit the memory of a {chip.name}; nothing was allocated.",
            needs=f"{_gib(weights)} of weights + {_gib(cache)} of cache"
            f" (batch {batch_size}, {max_cache_len} positions, {str(dtype).removeprefix('torch.')})",
            got=f"{_gib(room)} of {_gib(chip.hbm_bytes)} for weights and cache",
            next_step=f"at this batch size {longest} positions fit: lower max_new_tokens, the batch size or"
            " max_cache_len, or use a larger chip.",
        )
    )

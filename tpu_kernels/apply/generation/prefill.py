"""Prefill in whole chunks: all of the prompt but its last token, which the decode step takes.

The last chunk is padded on the right. Causality keeps the padding out of sight of the tokens before it, the cache is
cut back to the true length afterwards, and later tokens overwrite what the padding left there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from tpu_kernels.runtime.kv_cache import KernelCache

_PER_TOKEN_IDS = ("token_type_ids", "mm_token_type_ids")


def _own_storage(part: torch.Tensor) -> torch.Tensor:
    """A copy with plain strides: a slice keeps those of the prompt, and a graph is traced anew for other strides."""
    return part.clone(memory_format=torch.contiguous_format)


def _slice_positions(position_ids: torch.Tensor, start: int, end: int, chunk: int) -> torch.Tensor:
    """Positions of a chunk on the last dimension, counted on behind the last one for the padding."""
    part = position_ids[..., start:end]
    missing = chunk - (end - start)
    if missing:
        more = torch.arange(1, missing + 1, dtype=part.dtype, device=part.device)
        part = torch.cat((part, part[..., -1:] + more), dim=-1)
    return _own_storage(part)


def chunk_inputs(
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    first: int,
    start: int,
    end: int,
    chunk: int,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Token ids `[batch, chunk]` and keyword arguments of one chunk.

    input_ids holds the tokens from position `first` on, the chunk covers positions `start` to `end`; masks and
    position ids in `kwargs` cover all positions from 0.
    """
    missing = chunk - (end - start)
    ids = _own_storage(F.pad(input_ids[:, start - first : end - first], (0, missing)))
    sliced = dict(kwargs)
    if (mask := kwargs.get("attention_mask")) is not None:
        sliced["attention_mask"] = F.pad(mask[:, :end], (0, missing), value=1)
    if (position_ids := kwargs.get("position_ids")) is not None:
        sliced["position_ids"] = _slice_positions(position_ids, start, end, chunk)
    for name in _PER_TOKEN_IDS:
        if (types := kwargs.get(name)) is not None:
            sliced[name] = _own_storage(F.pad(types[:, start:end], (0, missing)))
    return ids, sliced


def prefill(
    model: PreTrainedModel,
    forward: Callable[..., Any],
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    total: int,
    chunk: int,
) -> Any:
    """Bring the cache up to the prompt's last token and return the outputs of that token's decode step.

    input_ids [batch, n] are the prompt's `n` tokens that end at position `total`; what stands before them is in the
    cache already.
    """
    cache: KernelCache = kwargs["past_key_values"]
    first = total - input_ids.shape[1]
    done, last = cache.host_length(), total - 1
    while done < last:
        # Behind a cache that was continued at an odd place a whole chunk may not fit: then token by token.
        size = chunk if done + chunk <= cache.get_max_length() else 1
        end = min(done + size, last)
        ids, sliced = chunk_inputs(input_ids, kwargs, first=first, start=done, end=end, chunk=size)
        forward(**model.prepare_inputs_for_generation(ids, **sliced), return_dict=True)
        if end - done < size:
            cache.set_length(end)
        done = end
    # transformers' loop decodes under this context (it switches experts' code), and the first step is one of its own.
    with model._optimize_model_for_decode():
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=1, **kwargs)
        return forward(**inputs, return_dict=True)

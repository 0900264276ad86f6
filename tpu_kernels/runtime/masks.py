"""Attention masks as intervals.

transformers describes a mask by a *mask function* (causal, sliding window, chunked, …) and a 2-D padding mask, and
then expands both into a `[batch, 1, queries, keys]` matrix. Whenever every row of that matrix is one run of valid
keys, its two ends say the same: `interval_mask` returns *bounds*, an int32 tensor `[batch, 1, queries, 2]` that holds
the first valid key and one past the last valid key of each query row. Any other mask is returned as transformers'
own boolean matrix.

Bounds are worked out on the host, so no device program depends on the length of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils

MaskFunction = Callable[..., Any]

_AND_CODE = masking_utils.and_masks(masking_utils.causal_mask_function).__code__
_WINDOW_CODE = masking_utils.sliding_window_overlay(1).__code__
_CHUNK_CODE = masking_utils.chunked_overlay(1, torch.zeros(1, dtype=torch.int64)).__code__


@dataclass(frozen=True)
class Interval:
    """A causal mask function whose rows are intervals: an optional window and an optional chunk."""

    window: int | None = None
    chunk: int | None = None
    chunk_origin: torch.Tensor | None = None


def _cells(function: MaskFunction) -> dict[str, Any]:
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, function.__closure__ or (), strict=True)}


def _parts(function: MaskFunction) -> list[MaskFunction]:
    if getattr(function, "__code__", None) is _AND_CODE:
        return [part for inner in _cells(function)["mask_functions"] for part in _parts(inner)]
    return [function]


def interval_of(function: MaskFunction) -> Interval | None:
    """The interval that `function` describes, or None where its rows need not be intervals."""
    window = chunk = origin = None
    causal = False
    for part in _parts(function):
        code = getattr(part, "__code__", None)
        if part is masking_utils.causal_mask_function:
            causal = True
        elif code is _WINDOW_CODE:
            size = _cells(part)["sliding_window"]
            window = size if window is None else min(window, size)
        elif code is _CHUNK_CODE and chunk is None:
            cells = _cells(part)
            chunk, origin = cells["chunk_size"], cells["left_padding"]
        else:
            return None
    return Interval(window, chunk, origin) if causal else None


def valid_run(padding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """First and one past the last valid position of each row of a host padding mask `[batch, length]`.

    None where some row has a hole. A row without any valid position gives (0, 0).
    """
    valid = padding.to(torch.int64).ne(0).to(torch.int64)
    length = valid.shape[-1]
    first = valid.argmax(dim=-1)
    count = valid.sum(dim=-1)
    last = length - valid.flip(-1).argmax(dim=-1)
    if not bool(((last - first == count) | (count == 0)).all()):
        return None
    empty = count == 0
    return first.masked_fill(empty, 0), last.masked_fill(empty, 0)


def interval_bounds(
    interval: Interval,
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    run: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """Bounds `[batch, 1, q_length, 2]`, int32, on the host, in slots of the cache (position minus `kv_offset`)."""
    position = torch.arange(q_offset, q_offset + q_length, dtype=torch.int64).expand(batch_size, -1)
    start, end = torch.zeros_like(position), position + 1
    if interval.window is not None:
        start = torch.maximum(start, position - interval.window + 1)
    if interval.chunk is not None:
        origin = torch.zeros(batch_size, dtype=torch.int64)
        if interval.chunk_origin is not None:
            origin = interval.chunk_origin.to("cpu", torch.int64).reshape(-1).expand(batch_size)
        chunk_start = torch.div(position - origin[:, None], interval.chunk, rounding_mode="floor") * interval.chunk
        start = torch.maximum(start, chunk_start + origin[:, None])
    if run is not None:
        first, last = run
        start, end = torch.maximum(start, first[:, None]), torch.minimum(end, last[:, None])
    start = (start - kv_offset).clamp(0, kv_length)
    end = torch.maximum((end - kv_offset).clamp(0, kv_length), start)
    return torch.stack((start, end), dim=-1).to(torch.int32)[:, None]


def interval_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor:
    """The mask interface of tpu_kernels (the signature is transformers' own, see `AttentionMaskInterface`).

    Returns bounds `[batch, 1, q_length, 2]` (int32) where the mask is an interval in every row, else a boolean
    matrix `[batch, 1, q_length, kv_length]` that is True at the valid keys. While a graph is traced the values of a
    padding mask are out of reach, so the matrix is returned there.
    """
    if not torch.compiler.is_dynamo_compiling():
        interval = interval_of(mask_function)
        run = None
        if interval is not None and attention_mask is not None:
            run = valid_run(attention_mask.to("cpu"))
        if interval is not None and (attention_mask is None or run is not None):
            bounds = interval_bounds(
                interval,
                batch_size=batch_size,
                q_length=q_length,
                kv_length=kv_length,
                q_offset=int(q_offset),
                kv_offset=int(kv_offset),
                run=run,
            )
            return bounds.to(device)
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    matrix: torch.Tensor = masking_utils.sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **kwargs,
    )
    return matrix


def is_bounds(mask: torch.Tensor | None, *, batch_size: int, q_length: int) -> bool:
    """Whether `mask` is what `interval_mask` returns for an interval; anything else is a user's own matrix."""
    return (
        mask is not None
        and mask.dtype == torch.int32
        and mask.ndim == 4
        and tuple(mask.shape) == (batch_size, 1, q_length, 2)
    )


def expand_bounds(bounds: torch.Tensor, kv_length: int) -> torch.Tensor:
    """The boolean matrix `[batch, 1, queries, kv_length]` of `bounds`.

    A row with an empty interval becomes all True: such a row belongs to padding, nobody reads it, and attention over
    an empty row is NaN in plain torch.
    """
    key = torch.arange(kv_length, device=bounds.device, dtype=torch.int32)
    start, end = bounds[..., :1], bounds[..., 1:]
    return ((key >= start) & (key < end)) | (start >= end)

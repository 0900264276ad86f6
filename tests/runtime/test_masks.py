"""Bounds against transformers' own mask matrices, for masks that are intervals and for those that are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import masking_utils as m

from tpu_kernels.runtime.masks import expand_bounds, interval_mask, interval_of, is_bounds, valid_run


def plain_matrix(
    padding: torch.Tensor | None, function: Any, q: int, kv: int, q_offset: int, kv_offset: int
) -> torch.Tensor:
    """What transformers' SDPA mask says, without its rescue of fully masked rows."""
    batch = 1 if padding is None else padding.shape[0]
    matrix = torch.zeros(batch, 1, q, kv, dtype=torch.bool)
    for b in range(batch):
        for i in range(q):
            for j in range(kv):
                key = torch.tensor(j + kv_offset)
                seen = bool(function(torch.tensor(b), torch.tensor(0), torch.tensor(i + q_offset), key))
                if padding is not None:
                    seen &= j + kv_offset < padding.shape[1] and bool(padding[b, j + kv_offset])
                matrix[b, 0, i, j] = seen
    return matrix


@st.composite
def masks(draw: st.DrawFn) -> dict[str, Any]:
    q, offset = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    kv = draw(st.integers(q + offset, q + offset + 4))
    batch = draw(st.integers(1, 3))
    total = q + offset
    padding = None
    if draw(st.booleans()):
        padding = torch.zeros(batch, total, dtype=torch.bool)
        for row in range(batch):
            first = draw(st.integers(0, total))
            padding[row, first : draw(st.integers(first, total))] = True
    kind = draw(st.sampled_from(["causal", "window", "chunk"]))
    size = draw(st.integers(1, 6))
    left = torch.zeros(batch, dtype=torch.int64) if padding is None else padding.long().argmax(-1)
    function = {
        "causal": m.causal_mask_function,
        "window": m.sliding_window_causal_mask_function(size),
        "chunk": m.chunked_causal_mask_function(size, left),
    }[kind]
    return {"q": q, "kv": kv, "q_offset": offset, "batch": batch, "padding": padding, "function": function}


@settings(max_examples=150, deadline=None)
@given(masks())
def test_bounds_say_what_the_matrix_says(case: dict[str, Any]) -> None:
    bounds = interval_mask(
        case["batch"],
        case["q"],
        case["kv"],
        case["q_offset"],
        0,
        mask_function=case["function"],
        attention_mask=case["padding"],
    )
    assert is_bounds(bounds, batch_size=case["batch"], q_length=case["q"])
    want = plain_matrix(case["padding"], case["function"], case["q"], case["kv"], case["q_offset"], 0)
    want = want.expand(case["batch"], -1, -1, -1)
    key = torch.arange(case["kv"])
    assert torch.equal((key >= bounds[..., :1]) & (key < bounds[..., 1:]), want)
    empty = ~want.any(-1, keepdim=True)
    assert torch.equal(expand_bounds(bounds, case["kv"]), want | empty)


def test_a_cache_that_starts_later_shifts_the_bounds() -> None:
    function = m.sliding_window_causal_mask_function(4)
    bounds = interval_mask(1, 1, 4, q_offset=9, kv_offset=6, mask_function=function)
    assert bounds.tolist() == [[[[0, 4]]]]
    assert interval_mask(1, 2, 8, q_offset=torch.tensor([5]), mask_function=function).tolist() == [[[[2, 6], [3, 7]]]]


@pytest.mark.parametrize(
    "function",
    [
        m.bidirectional_mask_function,
        m.or_masks(m.causal_mask_function, m.packed_sequence_mask_function(torch.zeros(1, 4))),
        m.and_masks(m.causal_mask_function, lambda b, h, q, k: k % 2 == 0),
        m.sliding_window_overlay(3),
    ],
    ids=["bidirectional", "or", "user's own", "window without causal"],
)
def test_other_mask_functions_become_a_matrix(function: Any) -> None:
    assert interval_of(function) is None
    matrix = interval_mask(1, 4, 4, mask_function=function, use_vmap=True)
    assert matrix.dtype == torch.bool and matrix.shape == (1, 1, 4, 4)
    assert torch.equal(matrix, plain_matrix(None, function, 4, 4, 0, 0))


def test_a_hole_in_the_padding_becomes_a_matrix() -> None:
    padding = torch.tensor([[1, 0, 1, 1]], dtype=torch.bool)
    assert valid_run(padding) is None
    matrix = interval_mask(1, 4, 4, attention_mask=padding)
    assert torch.equal(matrix, plain_matrix(padding, m.causal_mask_function, 4, 4, 0, 0))


def test_nested_windows_take_the_smaller() -> None:
    function = m.and_masks(m.sliding_window_causal_mask_function(5), m.sliding_window_overlay(3))
    interval = interval_of(function)
    assert interval is not None and interval.window == 3
    assert interval_mask(1, 1, 8, q_offset=6, mask_function=function).tolist() == [[[[4, 7]]]]


def test_a_users_matrix_is_not_taken_for_bounds() -> None:
    assert not is_bounds(None, batch_size=1, q_length=2)
    assert not is_bounds(torch.zeros(1, 1, 2, 2), batch_size=1, q_length=2)
    assert not is_bounds(torch.zeros(1, 1, 2, 2, dtype=torch.bool), batch_size=1, q_length=2)
    assert not is_bounds(torch.zeros(1, 1, 2, 4, dtype=torch.int32), batch_size=1, q_length=2)

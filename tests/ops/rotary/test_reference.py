"""The reference against the functions of transformers, bit by bit; it shows how each wants its tables prepared."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from tpu_kernels.ops.rotary.reference import rotary_reference

Tables = Callable[[torch.Tensor], torch.Tensor]


def doubled(table: torch.Tensor) -> torch.Tensor:
    """[B, T, R/2] for halves."""
    return torch.cat([table, table], dim=-1)


def repeated(table: torch.Tensor) -> torch.Tensor:
    """[B, T, R/2] for pairs."""
    return table.repeat_interleave(2, dim=-1)


def same(table: torch.Tensor) -> torch.Tensor:
    return table


def function(family: str, name: str = "apply_rotary_pos_emb") -> Callable[..., Any]:
    return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)


# family: what its own function takes, from tables [B, T, R/2]; what the contract takes; layout and rounding.
KINDS: dict[str, tuple[Tables, Tables, str, str]] = {
    "llama": (doubled, doubled, "half", "each"),
    "qwen3_next": (doubled, doubled, "half", "each"),
    "nemotron": (doubled, doubled, "half", "each"),
    "persimmon": (doubled, doubled, "half", "each"),
    "phi3": (doubled, doubled, "half", "each"),
    "gpt_oss": (same, doubled, "half", "each"),
    "olmo2": (doubled, doubled, "half", "last"),
    "modernbert": (doubled, doubled, "half", "last"),
    "glm4": (doubled, repeated, "interleaved", "each"),
    "helium": (doubled, repeated, "interleaved", "each"),
    "cohere": (repeated, repeated, "interleaved", "last"),
    "ernie4_5": (doubled, repeated, "interleaved", "last"),
}
PARTIAL = ("qwen3_next", "nemotron", "phi3", "glm4")
FLOAT32_TABLES = ("olmo2", "ernie4_5")


def inputs(rotary_dim: int, dtype: torch.dtype, table: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    angles = torch.rand(2, 5, rotary_dim // 2, generator=generator) * 6.3
    query, key = (torch.randn(2, heads, 5, 32, generator=generator).to(dtype) for heads in (3, 1))
    return query, key, angles.cos().to(table or dtype), angles.sin().to(table or dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
@pytest.mark.parametrize("family", KINDS)
def test_equals_the_functions_of_models(family: str, dtype: torch.dtype) -> None:
    theirs, ours, layout, rounding = KINDS[family]
    query, key, cos, sin = inputs(
        16 if family in PARTIAL else 32, dtype, torch.float32 if family in FLOAT32_TABLES else None
    )
    wanted = function(family)(query, key, theirs(cos), theirs(sin))
    for x, one in zip((query, key), wanted, strict=True):
        got = rotary_reference(x, ours(cos), ours(sin), layout=layout, rounding=rounding)
        assert got.dtype == one.dtype == dtype
        torch.testing.assert_close(got, one, rtol=0, atol=0 if dtype == torch.bfloat16 else 1e-6)


@DTYPES
@pytest.mark.parametrize("family", ["gemma3n", "gemma4"])
def test_equals_the_functions_of_one_tensor(family: str, dtype: torch.dtype) -> None:
    query, _, cos, sin = inputs(32, dtype)
    wanted = function(family)(query, doubled(cos), doubled(sin))
    torch.testing.assert_close(rotary_reference(query, doubled(cos), doubled(sin)), wanted, rtol=0, atol=0)


@DTYPES
def test_complex_factors_are_tables_of_pairs(dtype: torch.dtype) -> None:
    """llama 4 has [B, T, heads, D], deepseek v2 [B, heads, T, D]; both multiply complex numbers in float32."""
    query, key, cos, sin = inputs(32, dtype, torch.float32)
    options = {"layout": "interleaved", "rounding": "last"}
    turned = [rotary_reference(x, repeated(cos), repeated(sin), **options) for x in (query, key)]
    close = {"rtol": 0, "atol": 0.02 if dtype == torch.bfloat16 else 1e-6}
    factors = torch.complex(cos, sin)
    wanted = function("deepseek_v2", "apply_rotary_emb")(query, key, factors)
    for got, one in zip(turned, wanted, strict=True):
        torch.testing.assert_close(got, one, **close)
    wanted = function("llama4", "apply_rotary_emb")(query.transpose(1, 2), key.transpose(1, 2), factors)
    for got, one in zip(turned, wanted, strict=True):
        torch.testing.assert_close(got.transpose(1, 2), one, **close)


@DTYPES
def test_deepseek_v3_is_halves_of_what_is_sorted_first(dtype: torch.dtype) -> None:
    query, key, cos, sin = inputs(32, dtype)
    wanted = function("deepseek_v3", "apply_rotary_pos_emb_interleave")(query, key, doubled(cos), doubled(sin))
    for x, one in zip((query, key), wanted, strict=True):
        halves = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
        torch.testing.assert_close(rotary_reference(halves, doubled(cos), doubled(sin)), one, rtol=0, atol=0)
        # Or turned first and sorted afterwards, which the products of queries and keys do not see.
        turned = rotary_reference(x, repeated(cos), repeated(sin), layout="interleaved")
        torch.testing.assert_close(torch.cat([turned[..., 0::2], turned[..., 1::2]], dim=-1), one, rtol=0, atol=0)


@DTYPES
def test_nanochat_turns_the_other_way(dtype: torch.dtype) -> None:
    query, key, cos, sin = inputs(32, dtype)
    wanted = function("nanochat")(query, key, doubled(cos), doubled(sin))
    for x, one in zip((query, key), wanted, strict=True):
        torch.testing.assert_close(rotary_reference(x, doubled(cos), -doubled(sin)), one, rtol=0, atol=0)


@DTYPES
def test_gptj_has_heads_behind_positions(dtype: torch.dtype) -> None:
    query, _, cos, sin = inputs(32, dtype)
    wanted = function("gptj")(query.transpose(1, 2), sin, cos).transpose(1, 2)
    got = rotary_reference(query, repeated(cos), repeated(sin), layout="interleaved")
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_turn_keeps_the_length_of_a_pair_and_turns_back(layout: str) -> None:
    query, _, cos, sin = inputs(16, torch.float64)
    prepare = doubled if layout == "half" else repeated
    turned = rotary_reference(query, prepare(cos), prepare(sin), layout=layout)
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))
    assert torch.equal(turned[..., 16:], query[..., 16:])
    torch.testing.assert_close(rotary_reference(turned, prepare(cos), -prepare(sin), layout=layout), query)

"""Named calls of norms, with the figures of real models (their config.json on the Hub).

`CASES` has a decode step and a prefill chunk of every layer at full size, for ahead-of-time compilation and tuning.
`SMALL_CASES` has the same with narrower rows and few tokens, for interpreters; rows of one head stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tpu_kernels.ops.norm.contract import used_features

DECODE_BATCH: Final = 4
PREFILL_TOKENS: Final = 256
SMALL_HEADS: Final = 3
SMALL_SHARE: Final = 8
_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class NormCase:
    """One named call of a norm layer."""

    name: str
    model: str
    """Hub id of the model whose config.json has these figures."""
    hidden: int
    """N: elements of a row."""
    eps: float
    batch: int = 1
    tokens: int = 1
    """Of a batch row."""
    heads: int | None = None
    """Rows of a token, for a norm of single heads; None for a norm of hidden states."""
    weight: bool = True
    weight_by_head: bool = False
    bias: bool = False
    center: bool = False
    offset: float = 0.0
    order: str = "round_then_scale"

    function: str = "norm"
    reference: str = "tpu_kernels.ops.norm.reference:norm_reference"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x: [batch, tokens, hidden] or [batch, tokens, heads, hidden]."""
        return (self.batch, self.tokens, *(() if self.heads is None else (self.heads,)), self.hidden)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.shape[-2:] if self.weight_by_head else self.shape[-1:]

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword arguments of the call, tuning apart."""
        return {"eps": self.eps, "center": self.center, "offset": self.offset, "order": self.order}

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"hidden": self.hidden, "tokens": math.prod(self.shape[:-1])}

    @property
    def features(self) -> frozenset[str]:
        return used_features(
            weight=self.weight, bias=self.bias, center=self.center, offset=self.offset, order=self.order
        )

    def arguments(self, dtype: str) -> tuple[tuple[tuple[int, ...], str] | None, ...]:
        """Shape and dtype of x, weight and bias; None for what there is not."""
        return (
            (self.shape, dtype),
            (self.weight_shape, dtype) if self.weight else None,
            (self.weight_shape, dtype) if self.bias else None,
        )

    def steering(self) -> Mapping[int, Any]:
        return {}

    def needed_bytes(self, dtype: str) -> int:
        parameters = math.prod(self.weight_shape) * (self.weight + self.bias)
        return (2 * math.prod(self.shape) + parameters) * _ITEM_BYTES[dtype]

    def needed_flops(self) -> int:
        """There are no matrix products."""
        return 0

    def resized(self, batch: int | None = None, tokens: int | None = None) -> NormCase:
        """The same with another batch, or another number of tokens of a batch row."""
        return replace(self, batch=batch or self.batch, tokens=tokens or self.tokens)


MODELS: Final = (
    NormCase("qwen3-0.6b", "Qwen/Qwen3-0.6B", 1024, 1e-6),
    NormCase("qwen3-0.6b-query", "Qwen/Qwen3-0.6B", 128, 1e-6, heads=16),
    NormCase("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 4096, 1e-5),
    NormCase("gemma-2-9b", "google/gemma-2-9b", 3584, 1e-6, offset=1.0, order="scale_then_round"),
    NormCase("gemma-3-1b-query", "google/gemma-3-1b-pt", 256, 1e-6, heads=4, offset=1.0, order="scale_then_round"),
    NormCase("gemma-3n-e2b-value", "google/gemma-3n-E2B", 256, 1e-6, heads=2, weight=False, order="scale_then_round"),
    NormCase("gpt-oss-20b", "openai/gpt-oss-20b", 2880, 1e-5, order="scale_then_round"),
    NormCase("olmo-2-7b", "allenai/OLMo-2-1124-7B", 4096, 1e-6, order="scale_then_round"),
    NormCase("llama-4-scout-query", "meta-llama/Llama-4-Scout-17B-16E", 128, 1e-5, heads=40, weight=False),
    NormCase("olmo-7b", "allenai/OLMo-7B-hf", 4096, 1e-5, weight=False, center=True),
    NormCase("command-r", "CohereLabs/c4ai-command-r-v01", 8192, 1e-5, center=True, order="scale_then_round"),
    NormCase(
        "command-r-plus-query",
        "CohereLabs/c4ai-command-r-plus",
        128,
        1e-5,
        heads=96,
        weight_by_head=True,
        center=True,
        order="scale_then_round",
    ),
    NormCase("phi-2", "microsoft/phi-2", 2560, 1e-5, center=True, bias=True, order="scale_then_round"),
    NormCase(
        "minitron-4b", "nvidia/Minitron-4B-Base", 3072, 1e-5, center=True, bias=True, offset=1.0, order="round_offset"
    ),
    NormCase(
        "chameleon-7b-query", "facebook/chameleon-7b", 128, 1e-5, heads=32, weight_by_head=True, center=True, bias=True
    ),
)
"""One layer of each model: a decode step at batch 1. A name that ends in `-query` or `-value` is of a norm of heads."""


def _full(model: NormCase) -> tuple[NormCase, NormCase]:
    return (
        replace(model, name=f"{model.name}/decode", batch=DECODE_BATCH),
        replace(model, name=f"{model.name}/prefill", tokens=PREFILL_TOKENS),
    )


def _small(case: NormCase) -> NormCase:
    decode = case.tokens == 1
    return replace(
        case,
        name=f"{case.name}/small",
        batch=2,
        tokens=1 if decode else 19,
        heads=None if case.heads is None else min(case.heads, SMALL_HEADS),
        hidden=case.hidden // SMALL_SHARE if case.heads is None else case.hidden,
    )


CASES: Final = tuple(case for model in MODELS for case in _full(model))
SMALL_CASES: Final = tuple(_small(case) for case in CASES)


REPRESENTATIVES: Final = (
    "qwen3-0.6b",
    "qwen3-0.6b-query",
    "gemma-2-9b",
    "gpt-oss-20b",
    "command-r-plus-query",
    "minitron-4b",
)
"""Models whose cases differ in kind: rows of hidden states and of heads, widths that fill no tile, LayerNorm."""


def case(name: str) -> NormCase:
    """The case of that name, full-size or small ("gemma-2-9b/decode", "gemma-2-9b/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no norm case is called {name!r}; there are {', '.join(c.name for c in CASES)}")

"""Named calls of rotary embeddings, with the figures of real models (their config.json on the Hub).

`CASES` has a decode step and a prefill chunk of every model's queries at full size, for ahead-of-time compilation and
tuning. `SMALL_CASES` has the same with few heads and positions, for interpreters; head sizes stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tpu_kernels.ops.rotary.contract import used_features

DECODE_BATCH: Final = 4
PREFILL_POSITIONS: Final = 256
SMALL_POSITIONS: Final = 19
_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class RotaryCase:
    """One named call: the queries of a layer."""

    name: str
    model: str
    """Hub id of the model whose config.json has these figures."""
    heads: int
    head_dim: int
    rotary_dim: int
    layout: str = "half"
    rounding: str = "each"
    float32_tables: bool = False
    """Cosines and sines are float32 whatever x is."""
    query_only: bool = False
    """The model's function turns one tensor in a call."""
    batch: int = 1
    positions: int = 1

    function: str = "rotary"
    reference: str = "tpu_kernels.ops.rotary.reference:rotary_reference"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of x: [B, heads, T, D]."""
        return (self.batch, self.heads, self.positions, self.head_dim)

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """Of cos and sin: [B, T, R]."""
        return (self.batch, self.positions, self.rotary_dim)

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword arguments of the call, tuning apart."""
        return {"layout": self.layout, "rounding": self.rounding}

    @property
    def sizes(self) -> Mapping[str, int]:
        return {
            "heads": self.heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "tokens": self.batch * self.positions,
        }

    @property
    def features(self) -> frozenset[str]:
        return used_features(
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            layout=self.layout,
            rounding=self.rounding,
            query_only=self.query_only,
        )

    def table_dtype(self, dtype: str) -> str:
        """The dtype of cos and sin, for an x of `dtype`."""
        return "float32" if self.float32_tables else dtype

    def arguments(self, dtype: str) -> tuple[tuple[tuple[int, ...], str] | None, ...]:
        """Shape and dtype of x, cos and sin."""
        table = (self.table_shape, self.table_dtype(dtype))
        return ((self.shape, dtype), table, table)

    def steering(self) -> Mapping[int, Any]:
        return {}

    def needed_bytes(self, dtype: str) -> int:
        tables = 2 * math.prod(self.table_shape) * _ITEM_BYTES[self.table_dtype(dtype)]
        return 2 * math.prod(self.shape) * _ITEM_BYTES[dtype] + tables

    def needed_flops(self) -> int:
        """There are no matrix products."""
        return 0

    def resized(self, batch: int | None = None, tokens: int | None = None) -> RotaryCase:
        """The same with another batch, or another number of positions of a batch row."""
        return replace(self, batch=batch or self.batch, positions=tokens or self.positions)


MODELS: Final = (
    RotaryCase("qwen3-0.6b", "Qwen/Qwen3-0.6B", 16, 128, 128),
    RotaryCase("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 128, 128),
    RotaryCase("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 32, 64, 64),
    RotaryCase("gemma-2-9b", "google/gemma-2-9b", 16, 256, 256),
    RotaryCase("gemma-3n-e2b", "google/gemma-3n-E2B", 8, 256, 256, query_only=True),
    RotaryCase("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 96, 96),
    RotaryCase("gpt-oss-20b", "openai/gpt-oss-20b", 64, 64, 64),
    RotaryCase("phi-2", "microsoft/phi-2", 32, 80, 32),
    RotaryCase("gpt-neox-20b", "EleutherAI/gpt-neox-20b", 64, 96, 24),
    RotaryCase("glm-4-9b", "THUDM/GLM-4-9B-0414", 32, 128, 64, layout="interleaved"),
    RotaryCase("command-r", "CohereLabs/c4ai-command-r-v01", 64, 128, 128, layout="interleaved", rounding="last"),
    RotaryCase("olmo-2-7b", "allenai/OLMo-2-1124-7B", 32, 128, 128, rounding="last", float32_tables=True),
    RotaryCase(
        "llama-4-scout",
        "meta-llama/Llama-4-Scout-17B-16E",
        40,
        128,
        128,
        layout="interleaved",
        rounding="last",
        float32_tables=True,
    ),
)
"""The queries of each model: a decode step at batch 1."""


def _full(model: RotaryCase) -> tuple[RotaryCase, RotaryCase]:
    return (
        replace(model, name=f"{model.name}/decode", batch=DECODE_BATCH),
        replace(model, name=f"{model.name}/prefill", positions=PREFILL_POSITIONS),
    )


def _small(case: RotaryCase) -> RotaryCase:
    positions = min(case.positions, SMALL_POSITIONS)
    return replace(case, name=f"{case.name}/small", batch=2, heads=3, positions=positions)


CASES: Final = tuple(case for model in MODELS for case in _full(model))
SMALL_CASES: Final = tuple(_small(case) for case in CASES)


REPRESENTATIVES: Final = ("qwen3-0.6b", "llama-3.2-1b", "phi-2", "glm-4-9b", "command-r", "olmo-2-7b")
"""Models whose cases differ in kind: whole and partial heads, both layouts and roundings, tables of both dtypes."""


def case(name: str) -> RotaryCase:
    """The case of that name, full-size or small ("phi-2/decode", "phi-2/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no rotary case is called {name!r}; there are {', '.join(c.name for c in CASES)}")

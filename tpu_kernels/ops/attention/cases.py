"""Named calls of static attention, with the figures of real models (their config.json on the Hub).

`CASES` has a decode step and a prefill chunk of every model at full size, for ahead-of-time compilation and tuning.
`SMALL_CASES` has the same with few heads over a short cache, for interpreters: head sizes, group sizes, softcap,
sinks and windows stay what they are in the model (windows shrink with the cache).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

from tpu_kernels.errors import explain
from tpu_kernels.ops.attention.contract import AttentionShape, used_features
from tpu_kernels.ops.case import Argument

FULL_LENGTH: Final = 4096
DECODE_BATCH: Final = 4
PREFILL_QUERIES: Final = 256
SMALL_LENGTH: Final = 384
SMALL_QUERIES: Final = 24

_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class AttentionCase:
    """One named call; `scale`, `window`, `softcap` and `sinks` are those of the model's layer."""

    name: str
    model: str
    """Hub id of the model whose config.json has these figures."""
    shape: AttentionShape
    scale: float
    window: int | None = None
    """A query sees its own position and the `window` - 1 positions before it."""
    softcap: float | None = None
    sinks: bool = False
    length: int | None = None
    """How many positions of the cache are valid; None is half of the cache, and all new tokens."""

    def __post_init__(self) -> None:
        shape = self.shape
        if not shape.queries <= self.valid_length <= shape.length:
            raise ValueError(
                explain(
                    "This length does not fit the call.",
                    needs=f"{shape.queries} (the new tokens) to {shape.length} (the cache)",
                    got=str(self.valid_length),
                )
            )

    @property
    def function(self) -> str:
        return "attend"

    @property
    def reference(self) -> str:
        return "tpu_kernels.ops.attention.reference:static_attention_reference"

    @property
    def keywords(self) -> dict[str, Any]:
        return {"scale": self.scale, "softcap": self.softcap}

    @property
    def sizes(self) -> dict[str, int]:
        shape = self.shape
        return {
            "batch": shape.batch,
            "q_heads": shape.query_heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.key_dim,
            "tokens": shape.queries,
            "max_len": shape.length,
            "length": self.valid_length,
        }

    @property
    def layer_sizes(self) -> dict[str, int]:
        """The sizes that a spec may constrain, by the names that specs have for them."""
        shape = self.shape
        return {
            "head_dim": shape.key_dim,
            "value_head_dim": shape.value_dim,
            "query_length": shape.queries,
            "key_length": shape.length,
        }

    @property
    def valid_length(self) -> int:
        """Valid positions of the cache: all of them are written, and the last query is the last of them."""
        return max(self.shape.length // 2, self.shape.queries) if self.length is None else self.length

    def resized(self, *, batch: int | None = None, max_len: int | None = None, length: int | None = None) -> Self:
        """The call with another batch, cache length or number of valid positions, where one is given.

        ValueError if the valid positions do not fit the cache.
        """
        shape = replace(self.shape, batch=batch or self.shape.batch, length=max_len or self.shape.length)
        return replace(self, shape=shape, length=self.length if length is None else length)

    def bounds(self) -> list[list[int]]:
        """First valid key and one past the last, of each query of a row."""
        ends = range(self.valid_length - self.shape.queries + 1, self.valid_length + 1)
        return [[0 if self.window is None else max(0, end - self.window), end] for end in ends]

    def steering(self) -> dict[int, Any]:
        return {3: [[self.bounds()]] * self.shape.batch}

    def needed_bytes(self, dtype: str) -> int:
        """The keys and values that some query sees, the queries and the results."""
        shape, intervals = self.shape, self.bounds()
        seen = intervals[-1][1] - intervals[0][0]
        rows = shape.kv_heads * seen + shape.query_heads * shape.queries
        return shape.batch * rows * (shape.key_dim + shape.value_dim) * _ITEM_BYTES[dtype]

    def needed_flops(self) -> int:
        """Of the products of queries and keys, and of weights and values, where a query sees the key."""
        shape = self.shape
        pairs = sum(end - start for start, end in self.bounds())
        return 2 * shape.batch * shape.query_heads * pairs * (shape.key_dim + shape.value_dim)

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        """Shape and dtype of query, key, value, bounds and sinks; None for sinks that there are not."""
        shape = self.shape
        return (
            (shape.query_shape, dtype),
            (shape.key_shape, dtype),
            (shape.value_shape, dtype),
            (shape.bounds_shape, "int32"),
            ((shape.query_heads,), dtype) if self.sinks else None,
        )

    @property
    def features(self) -> frozenset[str]:
        return used_features(self.shape, window=self.window, left_padded=True, softcap=self.softcap, sinks=self.sinks)


def _model(
    name: str,
    model: str,
    query_heads: int,
    kv_heads: int,
    key_dim: int,
    *,
    value_dim: int | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> AttentionCase:
    shape = AttentionShape(
        1, query_heads, kv_heads, 1, FULL_LENGTH, key_dim, key_dim if value_dim is None else value_dim
    )
    return AttentionCase(
        name, model, shape, key_dim**-0.5 if scale is None else scale, window=window, softcap=softcap, sinks=sinks
    )


MODELS: Final = (
    _model("qwen3-0.6b", "Qwen/Qwen3-0.6B", 16, 8, 128),
    _model("qwen3-8b", "Qwen/Qwen3-8B", 32, 8, 128),
    _model("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 8, 128),
    _model("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 32, 8, 64),
    _model("mistral-7b", "mistralai/Mistral-7B-v0.1", 32, 8, 128, window=4096),
    _model("gemma-2-2b", "google/gemma-2-2b", 8, 4, 256, scale=256**-0.5, window=4096, softcap=50.0),
    _model("gemma-2-9b", "google/gemma-2-9b", 16, 8, 256, scale=256**-0.5, window=4096, softcap=50.0),
    _model("gemma-3-1b", "google/gemma-3-1b-pt", 4, 1, 256, scale=256**-0.5, window=512),
    _model("gemma-3-4b", "google/gemma-3-4b-pt", 8, 4, 256, scale=256**-0.5, window=1024),
    _model("gpt-oss-20b", "openai/gpt-oss-20b", 64, 8, 64, window=128, sinks=True),
    _model("glm-4-9b", "THUDM/GLM-4-9B-0414", 32, 2, 128),
    _model("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 32, 96, window=2047),
    _model("phi-4", "microsoft/phi-4", 40, 10, 128),
    # Not dense decoders of today, but the corners of the contract: one key/value head for many query
    # heads, a head size that fits no tile, value heads of another size than key heads.
    _model("falcon-7b", "tiiuae/falcon-7b", 71, 1, 64),
    _model("phi-2", "microsoft/phi-2", 32, 32, 80),
    _model("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 16, 16, 192, value_dim=128),
)
"""One layer of each model: a decode step at batch 1."""


def _full(model: AttentionCase) -> tuple[AttentionCase, AttentionCase]:
    return (
        replace(model, name=f"{model.name}/decode", shape=replace(model.shape, batch=DECODE_BATCH)),
        replace(model, name=f"{model.name}/prefill", shape=replace(model.shape, queries=PREFILL_QUERIES)),
    )


def _small(case: AttentionCase) -> AttentionCase:
    kv_heads = min(case.shape.kv_heads, 2)
    shape = replace(
        case.shape,
        batch=2,
        kv_heads=kv_heads,
        query_heads=kv_heads * case.shape.group,
        queries=1 if case.shape.is_decode else SMALL_QUERIES,
        length=SMALL_LENGTH,
    )
    window = None if case.window is None else max(32, case.window * SMALL_LENGTH // FULL_LENGTH // 2)
    return replace(case, name=f"{case.name}/small", shape=shape, window=window)


CASES: Final = tuple(case for model in MODELS for case in _full(model))
SMALL_CASES: Final = tuple(_small(case) for case in CASES)


REPRESENTATIVES: Final = ("qwen3-0.6b", "gpt-oss-20b", "gemma-2-9b", "phi-3-mini", "falcon-7b", "deepseek-v2-lite")
"""Models whose cases differ in kind: head sizes of 128, 64, 256, 96 and 192, groups of 2, 8, 1 and 71."""


def case(name: str) -> AttentionCase:
    """The case of that name, full-size or small ("gpt-oss-20b/decode", "gpt-oss-20b/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no attention case is called {name!r}; there are {', '.join(c.name for c in CASES)}")

"""Named calls of static attention, with the figures of real models (their config.json on the Hub).

`CASES` has a decode step and a prefill chunk of every model at full size, for ahead-of-time compilation and tuning.
`SMALL_CASES` has the same with few heads over a short cache, for interpreters: head sizes, group sizes, softcap,
sinks and windows stay what they are in the model (windows shrink with the cache).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from tpu_kernels.errors import explain
from tpu_kernels.ops.attention.contract import AttentionShape, used_features

FULL_LENGTH: Final = 4096
DECODE_BATCH: Final = 4
PREFILL_QUERIES: Final = 256
SMALL_LENGTH: Final = 384
SMALL_QUERIES: Final = 24


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

    def arguments(self, dtype: str) -> tuple[tuple[tuple[int, ...], str] | None, ...]:
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


def cases_named(names: Iterable[str]) -> list[AttentionCase]:
    """The full-size cases of those names, in the order of CASES: a case ("NAME/decode") or all of a model ("NAME").

    Raises ValueError for a name that no case has.
    """
    wanted = set(names)
    known = {case.name for case in CASES} | {case.name.split("/")[0] for case in CASES}
    if unknown := sorted(wanted - known):
        near = [close for name in unknown for close in get_close_matches(name, known, n=1)]
        raise ValueError(
            explain(
                "there is no such case.",
                needs="a model or one of its cases: " + ", ".join(dict.fromkeys(c.name.split("/")[0] for c in CASES)),
                got=", ".join(unknown),
                next_step=f"did you mean {', '.join(near)}?" if near else None,
            )
        )
    return [case for case in CASES if {case.name, case.name.split("/")[0]} & wanted]


def case(name: str) -> AttentionCase:
    """The case of that name, full-size or small ("gpt-oss-20b/decode", "gpt-oss-20b/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no attention case is called {name!r}; there are {', '.join(c.name for c in CASES)}")

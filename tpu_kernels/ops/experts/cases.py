"""Named calls of experts, with the figures of real models (their config.json on the Hub).

`CASES` has a decode step and a prefill chunk of every model at full size, for ahead-of-time compilation and tuning.
`SMALL_CASES` has the same with narrow experts, for interpreters: what a layer computes stays what it is in the model.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tpu_kernels.errors import explain
from tpu_kernels.ops.case import Argument
from tpu_kernels.ops.experts.contract import ExpertsShape, used_features

DECODE_TOKENS: Final = 4
PREFILL_TOKENS: Final = 512
SMALL_PREFILL_TOKENS: Final = 40
BATCHED_TOKENS: Final = 16
"""Up to here a decode step of transformers, which gathers the weights of each token's experts, is compared with."""
BASELINES: Final = {name: f"tpu_kernels.ops.experts.baselines:{name}" for name in ("batched_mm", "grouped_mm")}
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ExpertsCase:
    """One named call; the fields behind `shape` are those of the model's layer."""

    name: str
    model: str
    """Hub id of the model whose config.json has these figures."""
    shape: ExpertsShape
    activation: str
    interleaved: bool = False
    bias: bool = False
    rounding: str = "each"
    limit: float | None = None
    up_offset: float = 0.0
    float_weights: bool = False
    """Whether the router hands over float32 weights, whatever the dtype of the layer."""

    @property
    def function(self) -> str:
        return "experts"

    @property
    def reference(self) -> str:
        """What transformers compiles for so many tokens: the reference loops over experts, and is not one program."""
        return BASELINES["batched_mm" if self.shape.tokens <= BATCHED_TOKENS else "grouped_mm"]

    @property
    def baselines(self) -> dict[str, str]:
        """The other of transformers' two ways; none where gathering weights for every token would fill the memory."""
        return {"grouped_mm": BASELINES["grouped_mm"]} if self.shape.tokens <= BATCHED_TOKENS else {}

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            "activation": self.activation,
            "gated": self.shape.gated,
            "transposed": self.shape.transposed,
            "interleaved": self.interleaved,
            "rounding": self.rounding,
            "limit": self.limit,
            "up_offset": self.up_offset,
        }

    @property
    def sizes(self) -> dict[str, int]:
        shape = self.shape
        return {
            "tokens": shape.tokens,
            "hidden": shape.hidden,
            "intermediate": shape.intermediate,
            "num_experts": shape.num_experts,
            "top_k": shape.top_k,
        }

    @property
    def features(self) -> frozenset[str]:
        return used_features(
            activation=self.activation,
            gated=self.shape.gated,
            transposed=self.shape.transposed,
            interleaved=self.interleaved,
            limit=self.limit,
            bias=self.bias,
        )

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        """Of hidden, indices, weights, gate_up, down and the biases; None for biases that there are not."""
        shape = self.shape
        return (
            (shape.hidden_shape, dtype),
            (shape.routing_shape, "int32"),
            (shape.routing_shape, "float32" if self.float_weights else dtype),
            (shape.gate_up_shape, dtype),
            (shape.down_shape, dtype),
            (shape.gate_up_bias_shape, dtype) if self.bias else None,
            (shape.down_bias_shape, dtype) if self.bias else None,
        )

    def steering(self) -> dict[int, list[list[int]]]:
        """The indices: each token's experts, chosen as by a router that favours none."""
        return {1: [list(row) for row in routing(self.shape.tokens, self.shape.num_experts, self.shape.top_k)]}

    @property
    def used_experts(self) -> int:
        """Experts that some token chooses."""
        return len({expert for row in self.steering()[1] for expert in row})

    def weight_bytes(self, dtype: str) -> int:
        """Of the experts that some token chooses: what any implementation must read of the weights."""
        return self.used_experts * self.shape.expert_elements * ITEM_BYTES[dtype]

    def needed_bytes(self, dtype: str) -> int:
        shape = self.shape
        rows = 2 * math.prod(shape.hidden_shape) * ITEM_BYTES[dtype]
        biases = self.used_experts * (shape.product + shape.hidden) * ITEM_BYTES[dtype] if self.bias else 0
        weight_bytes = 4 if self.float_weights else ITEM_BYTES[dtype]
        return self.weight_bytes(dtype) + rows + biases + math.prod(shape.routing_shape) * (4 + weight_bytes)

    def needed_flops(self) -> int:
        return 2 * math.prod(self.shape.routing_shape) * self.shape.expert_elements

    def resized(self, tokens: int) -> ExpertsCase:
        """The same layer with another number of tokens. ValueError if that is not positive."""
        if tokens < 1:
            raise ValueError(explain("This is no number of tokens.", needs="1 or more", got=str(tokens)))
        return replace(self, shape=replace(self.shape, tokens=tokens))


@cache
def routing(tokens: int, num_experts: int, top_k: int) -> tuple[tuple[int, ...], ...]:
    """`top_k` experts for each token, all equally likely; the same in every process."""
    chance = random.Random(f"{tokens} {num_experts} {top_k}")
    return tuple(tuple(chance.sample(range(num_experts), top_k)) for _ in range(tokens))


def _model(
    name: str,
    model: str,
    hidden: int,
    intermediate: int,
    num_experts: int,
    top_k: int,
    *,
    activation: str = "silu",
    gated: bool = True,
    transposed: bool = False,
    **layer: Any,
) -> ExpertsCase:
    shape = ExpertsShape(1, hidden, intermediate, num_experts, top_k, gated, transposed)
    return ExpertsCase(name, model, shape, activation, **layer)


MODELS: Final = (
    _model("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 2048, 768, 128, 8),
    _model("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 4096, 14336, 8, 2),
    _model(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        2880,
        2880,
        32,
        4,
        activation="quick_gelu",
        transposed=True,
        interleaved=True,
        bias=True,
        limit=7.0,
        up_offset=1.0,
    ),
    _model("olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924", 2048, 1024, 64, 8),
    _model("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 2048, 1408, 64, 6, float_weights=True),
    # Not of models, but the corners of the contract: one matrix before the activation, rows that fill no tile in
    # either weight, one rounding behind the gate, interleaved halves that are not transposed.
    _model(
        "two-layer",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        2688,
        1856,
        128,
        6,
        activation="relu2",
        gated=False,
    ),
    _model(
        "odd-sizes",
        "",
        1000,
        328,
        16,
        3,
        activation="gelu_tanh",
        interleaved=True,
        bias=True,
        rounding="last",
        limit=2.0,
        float_weights=True,
    ),
)
"""One layer of each model, for one token."""


def _full(model: ExpertsCase) -> tuple[ExpertsCase, ExpertsCase]:
    return (
        replace(model.resized(DECODE_TOKENS), name=f"{model.name}/decode"),
        replace(model.resized(PREFILL_TOKENS), name=f"{model.name}/prefill"),
    )


def _narrow(size: int) -> int:
    """A small size that fills whole tiles where `size` does, and else does not."""
    return 256 if size % 128 == 0 else 16 * (5 + size % 3) + size % 16


def _small(case: ExpertsCase) -> ExpertsCase:
    shape = case.shape
    decode = shape.tokens == DECODE_TOKENS
    narrow = replace(
        shape,
        tokens=3 if decode else SMALL_PREFILL_TOKENS,
        hidden=_narrow(shape.hidden),
        intermediate=_narrow(shape.intermediate),
        num_experts=min(shape.num_experts, 8),
        top_k=min(shape.top_k, 3),
    )
    limit = None if case.limit is None else 1.0
    return replace(case, name=f"{case.name}/small", shape=narrow, limit=limit)


CASES: Final = tuple(case for model in MODELS for case in _full(model))
SMALL_CASES: Final = tuple(_small(case) for case in CASES)

REPRESENTATIVES: Final = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "two-layer", "odd-sizes")
"""Models whose cases differ in kind: many narrow experts, few wide ones, transposed and interleaved with biases, one
matrix before the activation, sizes that fill no tile."""


def case(name: str) -> ExpertsCase:
    """The case of that name, full-size or small ("gpt-oss-20b/decode", "gpt-oss-20b/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no case of experts is called {name!r}; there are {', '.join(c.name for c in CASES)}")

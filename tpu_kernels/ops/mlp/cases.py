"""Named calls of MLPs, with the figures of real models (their config.json on the Hub).

`CASES` has decode steps of one and of eight rows and a prefill chunk of every model at full size, for ahead-of-time
compilation and tuning. `SMALL_CASES` has the same with narrow layers, for interpreters: what the widths leave over
when divided by 128 stays what it is in the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

from tpu_kernels.ops.case import Argument
from tpu_kernels.ops.mlp.contract import MlpShape, used_features

DECODE_BATCH: Final = 8
PREFILL_TOKENS: Final = 256
SMALL_TOKENS: Final = 40
_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}
_TILE: Final = 128


@dataclass(frozen=True)
class MlpCase:
    """One named call; the rest is that of the model's layer."""

    name: str
    model: str
    """Hub id of the model whose config.json has these figures."""
    shape: MlpShape
    activation: str
    gated: bool = True
    fused: bool = False
    """Gate and up projection are one weight."""
    bias: bool = False
    transposed: bool = False
    rounding: str = "each"

    @property
    def function(self) -> str:
        return "gated_mlp" if self.gated else "mlp"

    @property
    def reference(self) -> str:
        return f"tpu_kernels.ops.mlp.reference:{self.function}_reference"

    @property
    def baselines(self) -> dict[str, str]:
        return {"linear layers": f"tpu_kernels.ops.mlp.reference:{self.function}_layers"}

    @property
    def keywords(self) -> dict[str, Any]:
        own = {} if self.gated else {"transposed": self.transposed}
        return {"activation": self.activation, "rounding": self.rounding, **own}

    @property
    def sizes(self) -> dict[str, int]:
        shape = self.shape
        return {"tokens": shape.tokens, "hidden": shape.hidden, "intermediate": shape.intermediate}

    @property
    def layer_sizes(self) -> dict[str, int]:
        """The sizes that a spec may constrain, by the names that specs have for them."""
        return self.sizes

    @property
    def features(self) -> frozenset[str]:
        return used_features(
            self.activation, gated=self.gated, fused=self.fused, bias=self.bias, transposed=self.transposed
        )

    @property
    def is_decode(self) -> bool:
        """Whether each row of the batch has one new token."""
        return self.shape.lead[-1] == 1

    def resized(self, *, tokens: int | None = None) -> Self:
        """The call with another number of rows: of the batch in a decode step, of the chunk in a prefill."""
        if tokens is None:
            return self
        lead = (tokens, 1) if self.is_decode else (1, tokens)
        return replace(self, shape=replace(self.shape, lead=lead))

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        """Shape and dtype of x, the weights and their biases; None for what the layer has not."""
        shape = self.shape
        first = shape.first_shape(fused=self.fused, transposed=self.transposed)
        down = shape.down_shape(transposed=self.transposed)
        weights: list[tuple[int, ...] | None] = [first, down]
        biases: list[tuple[int, ...] | None] = [(shape.intermediate,), (shape.out,)]
        if self.gated:
            weights.insert(1, None if self.fused else first)
            biases.insert(1, None if self.fused else (shape.intermediate,))
            biases[0] = (first[0],)
        if not self.bias:
            biases = [None] * len(biases)
        given = [shape.x_shape, *weights, *biases]
        return tuple(None if one is None else (one, dtype) for one in given)

    def steering(self) -> dict[int, Any]:
        return {}

    def needed_bytes(self, dtype: str) -> int:
        """The weights and biases, once, the rows and the results."""
        shape = self.shape
        weights = self._first_projections * shape.hidden * shape.intermediate + shape.intermediate * shape.out
        biases = (self._first_projections * shape.intermediate + shape.out) if self.bias else 0
        return (weights + biases + shape.tokens * (shape.hidden + shape.out)) * _ITEM_BYTES[dtype]

    def needed_flops(self) -> int:
        shape = self.shape
        columns = self._first_projections * shape.hidden + shape.out
        return 2 * shape.tokens * shape.intermediate * columns

    @property
    def _first_projections(self) -> int:
        return 2 if self.gated else 1


def _model(name: str, model: str, hidden: int, intermediate: int, activation: str, **kind: Any) -> MlpCase:
    return MlpCase(name, model, MlpShape((1, 1), hidden, intermediate, hidden), activation, **kind)


MODELS: Final = (
    _model("qwen3-0.6b", "Qwen/Qwen3-0.6B", 1024, 3072, "silu"),
    _model("qwen3-8b", "Qwen/Qwen3-8B", 4096, 12288, "silu"),
    _model("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 4096, 14336, "silu"),
    _model("gemma-2-9b", "google/gemma-2-9b", 3584, 14336, "gelu_tanh"),
    _model("phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 3072, 8192, "silu", fused=True),
    _model("glm-4-9b", "THUDM/GLM-4-9B-0414", 4096, 13696, "silu", fused=True),
    _model("gpt2", "openai-community/gpt2", 768, 3072, "gelu_tanh", gated=False, bias=True, transposed=True),
    _model("starcoder2-3b", "bigcode/starcoder2-3b", 3072, 12288, "gelu_tanh", gated=False, bias=True),
    # Corners of the contract: widths that fit no tile, which XLA stores column by column, and other activations.
    _model("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", 576, 1536, "silu"),
    _model("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 2048, 10944, "silu"),
    _model("gpt2-xl", "openai-community/gpt2-xl", 1600, 6400, "gelu_tanh", gated=False, bias=True, transposed=True),
    _model("opt-125m", "facebook/opt-125m", 768, 3072, "relu", gated=False, bias=True),
    _model("nemotron-mini-4b", "nvidia/Nemotron-Mini-4B-Instruct", 3072, 9216, "relu2", gated=False),
)
"""One layer of each model: a decode step at batch 1."""


def _full(model: MlpCase) -> tuple[MlpCase, ...]:
    def of(phase: str, *lead: int) -> MlpCase:
        return replace(model, name=f"{model.name}/{phase}", shape=replace(model.shape, lead=lead))

    return of("decode", 1, 1), of("decode-8", DECODE_BATCH, 1), of("prefill", 1, PREFILL_TOKENS)


def _small(case: MlpCase) -> MlpCase:
    hidden, intermediate = _TILE + case.shape.hidden % _TILE, 3 * _TILE + case.shape.intermediate % _TILE
    lead = case.shape.lead if case.is_decode else (1, SMALL_TOKENS)
    return replace(case, name=f"{case.name}/small", shape=MlpShape(lead, hidden, intermediate, hidden))


CASES: Final = tuple(case for model in MODELS for case in _full(model))
SMALL_CASES: Final = tuple(_small(case) for case in CASES)

REPRESENTATIVES: Final = ("qwen3-0.6b", "qwen3-8b", "glm-4-9b", "gpt2", "starcoder2-3b", "deepseek-v2-lite", "gpt2-xl")
"""Models whose cases differ in kind: small and large, fused, transposed, with biases, widths that fit no tile."""


def case(name: str) -> MlpCase:
    """The case of that name, full-size or small ("qwen3-8b/decode", "qwen3-8b/decode/small"). KeyError."""
    for candidate in (*CASES, *SMALL_CASES):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no MLP case is called {name!r}; there are {', '.join(c.name for c in CASES)}")

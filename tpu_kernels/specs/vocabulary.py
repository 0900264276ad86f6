"""The closed vocabularies of a kernel spec: ops, dtypes, generations, features and dimensions."""

from __future__ import annotations

from typing import Final, Literal, get_args

Op = Literal["attention", "mlp", "norm", "rotary", "experts"]
DType = Literal["float32", "bfloat16", "float16"]
Generation = Literal["v4", "v5e", "v5p", "v6e", "tpu7x"]
Fallback = Literal["auto", "sdpa", "eager"]
Mode = Literal["eager", "compiled"]
Policy = Literal["auto", "always"]

OPS: Final[tuple[str, ...]] = get_args(Op)
DTYPES: Final[tuple[str, ...]] = get_args(DType)
GENERATIONS: Final[tuple[str, ...]] = get_args(Generation)
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

_ACTIVATIONS: Final = (
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_10",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "hardswish",
    "mish",
    "laplace",
    "sqrtsoftplus",
    "identity",
)
"""Those of `ops.activations`, which needs torch."""

FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "attention": (
        "causal",
        "left_padding",
        "sliding_window",
        "grouped_heads",
        "multi_query",
        "softcap",
        "sinks",
        "value_head_dim",
    ),
    "mlp": ("gated", "two_layer", "fused_gate_up", "bias", "transposed_weights", "clamp", *_ACTIVATIONS),
    "norm": ("rms_norm", "layer_norm", "weight", "bias", "weight_offset", "round_then_scale", "scale_then_round"),
    "rotary": ("half", "interleaved", "partial", "query_only", "round_each", "round_last"),
    "experts": ("gated", "two_layer", "bias", "transposed_weights", "interleaved", "clamp", *_ACTIVATIONS),
}
"""What a kernel of each op may say that it covers; a call that needs anything else goes to the fallback."""

DIMENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("head_dim", "value_head_dim", "key_length", "query_length"),
    "mlp": ("hidden", "intermediate", "tokens"),
    "norm": ("hidden", "tokens"),
    "rotary": ("head_dim", "rotary_dim", "tokens"),
    "experts": ("hidden", "intermediate", "num_experts", "top_k", "tokens"),
}
"""The sizes that a kernel of each op may constrain under `requires` and `prefer`."""

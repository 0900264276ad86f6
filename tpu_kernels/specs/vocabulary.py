"""The closed vocabularies of a kernel spec: ops, dtypes, generations, features and dimensions."""

from __future__ import annotations

from typing import Final, Literal, get_args

Op = Literal["attention", "mlp", "norm", "rotary", "experts"]
DType = Literal["float32", "bfloat16", "float16"]
Generation = Literal["v4", "v5e", "v5p", "v6e", "tpu7x"]
Fallback = Literal["auto", "sdpa", "eager"]

OPS: Final[tuple[str, ...]] = get_args(Op)
DTYPES: Final[tuple[str, ...]] = get_args(DType)
GENERATIONS: Final[tuple[str, ...]] = get_args(Generation)

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
    "mlp": (),
    "norm": (),
    "rotary": (),
    "experts": (),
}
"""What a kernel of each op may say that it covers; a call that needs anything else goes to the fallback."""

DIMENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("head_dim", "value_head_dim", "key_length", "query_length"),
    "mlp": ("hidden", "intermediate"),
    "norm": ("hidden",),
    "rotary": ("head_dim",),
    "experts": ("hidden", "intermediate"),
}
"""The sizes that a kernel of each op may constrain under `requires`."""

"""What a parallel style of transformers does to a parameter, and the styles of our own that its table lacks.

A style of ours is a name with its figures in it, so that a `DistributedConfig`, which holds names alone, says all.
`runtime/parallel_styles.py` holds the code behind the names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

COLWISE: Final = frozenset({"colwise", "colwise_gather_output", "colwise_rep"})
ROWWISE: Final = frozenset({"rowwise", "rowwise_split_input", "rowwise_rep"})
PACKED: Final = frozenset({"packed_colwise", "packed_rowwise"})
SHARDING: Final = COLWISE | ROWWISE | PACKED | {"embedding_rowwise", "embedding_colwise"}
"""Styles of transformers that cut parameters."""


@dataclass(frozen=True)
class KeyValueHeads:
    """For weight and bias of a key or value projection with fewer heads than chips: each chip loads the one head that
    its query heads use. `heads` divides the number of chips."""

    heads: int

    def __str__(self) -> str:
        return f"tpu_kernels_kv_heads_{self.heads}"


@dataclass(frozen=True)
class Heads:
    """For an attention module: its own parameters (sinks), one number or row for each query head, go with the heads,
    and `num_key_value_groups` becomes what holds on each chip."""

    query_heads: int

    def __str__(self) -> str:
        return f"tpu_kernels_heads_{self.query_heads}"


@dataclass(frozen=True)
class SharedBias:
    """For experts: transformers' `moe_tp_experts`, where each chip adds its share of the down projection's bias, so
    that the sum over the chips holds it once."""

    def __str__(self) -> str:
        return "tpu_kernels_experts_shared_bias"


OurStyle = KeyValueHeads | Heads | SharedBias


def our_style(name: str) -> OurStyle | None:
    """The style of ours of this name, or None."""
    if name == str(SharedBias()):
        return SharedBias()
    if found := re.fullmatch(r"tpu_kernels_kv_heads_(\d+)", name):
        return KeyValueHeads(int(found[1]))
    if found := re.fullmatch(r"tpu_kernels_heads_(\d+)", name):
        return Heads(int(found[1]))
    return None


def cut(style: str, name: str, shape: tuple[int, ...], chips: int) -> tuple[int, int, int] | None:
    """(dimension, pieces, runs) that a style cuts a parameter into, or None where each chip keeps it whole.

    style   a parallel style of transformers or of ours
    name    of the parameter within its module: "weight", "bias", "gate_up_proj", …
    pieces  as many as chips, or fewer where several chips hold the same piece
    runs    1, or for packed styles how many equal runs of the dimension are cut one by one
    """
    last, rows = len(shape) - 1, max(len(shape) - 2, 0)
    if style in COLWISE:
        return rows, chips, 1
    if style in ROWWISE:
        return None if name == "bias" else (last, chips, 1)
    if style == "packed_colwise":
        return (0, chips, 1) if len(shape) == 1 else (rows, chips, 2)
    if style == "packed_rowwise":
        return None if len(shape) == 1 else (last, chips, 2)
    if style in ("embedding_rowwise", "embedding_colwise"):
        return (0 if style == "embedding_rowwise" else 1), chips, 1
    match our_style(style):
        case KeyValueHeads(heads):
            return 0, heads, 1
        case Heads():
            return 0, chips, 1
    return None


def local_shape(style: str | None, name: str, shape: tuple[int, ...], chips: int) -> tuple[int, ...] | None:
    """The shape that each chip holds; None where the chips would hold unequal ones. Arguments as `cut`."""
    found = cut(style, name, shape, chips) if style is not None else None
    if found is None:
        return shape
    dimension, pieces, runs = found
    if shape[dimension] % (pieces * runs):
        return None
    return (*shape[:dimension], shape[dimension] // pieces, *shape[dimension + 1 :])

"""Bytes of weights and cache on each chip, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

import torch

from tpu_kernels.chips import CHIPS
from tpu_kernels.plan.tp.parts import ChipFit, HeadSplit
from tpu_kernels.plan.tp.rules import Rules

FOR_PROGRAMS: Final = 0.05
"""Share of a chip's usable memory that is left for the programs and their temporaries."""


def weight_bytes(rules: Rules, shapes: dict[str, tuple[int, ...]]) -> int:
    """Bytes of all parameters on each chip; one that is tied to another counts once."""
    tied = rules.structure.tied
    return sum(
        prod(shapes[each.path]) * each.dtype.itemsize for each in rules.structure.parameters if each.path not in tied
    )


def cache_bytes(heads: Iterable[HeadSplit], *, batch: int, length: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values on each chip, every layer at full length, as the cache of an enabled model is."""
    numbers = sum(each.layers * each.local_kv_heads * (each.key_size + each.value_size) for each in heads)
    return numbers * batch * length * dtype.itemsize


def fits(needed: int) -> tuple[ChipFit, ...]:
    """For each TPU generation whether this many bytes fit one device."""
    return tuple(ChipFit(chip.name, int(chip.usable_hbm_bytes * (1 - FOR_PROGRAMS)), needed) for chip in CHIPS.values())

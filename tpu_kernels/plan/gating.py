"""The ways in which MLPs and experts gate: activation, clamp, what is added to the up part, and rounding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import torch

from tpu_kernels.ops.activations import ACTIVATIONS
from tpu_kernels.plan.probe import settings_of

SCALES: Final = (0.3, 1.0, 3.0, 6.0, 10.0, 20.0, 1e3, 1e5)
"""Of the inputs of a probe: up to sizes at which a clamp bites and an activation leaves its middle."""

_UP_OFFSETS: Final = (0.0, 1.0)
_ROUNDINGS: Final = ("each", "last")


def gatings(module: torch.nn.Module) -> Iterator[list[dict[str, Any]]]:
    """Keywords of a gated layer, in groups that differ in rounding alone; the plainest come first.

    A clamp's limit is one of the module's own settings.
    """
    settings = (float(each) for each in settings_of(module).values() if type(each) in (int, float))
    limits = dict.fromkeys(value for value in settings if 0.5 < value < 1e4)
    for limit, offset, activation in product((None, *limits), _UP_OFFSETS, ACTIVATIONS):
        gating = {"activation": activation, "limit": limit, "up_offset": offset}
        yield [{**gating, "rounding": rounding} for rounding in _ROUNDINGS]


def activations() -> Iterator[list[dict[str, Any]]]:
    """Keywords of a layer without a gate, as such groups."""
    for activation in ACTIVATIONS:
        yield [{"activation": activation}]


def gating_features(keywords: dict[str, Any]) -> set[str]:
    """What a kernel must cover for these keywords."""
    features = {keywords["activation"]}
    if keywords.get("limit") is not None or keywords.get("up_offset"):
        features.add("clamp")
    return features

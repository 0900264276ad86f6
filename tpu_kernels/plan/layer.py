"""One candidate for a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpu_kernels.plan.binding import Binding, RotaryFunction
from tpu_kernels.plan.match import LayerFacts


@dataclass(frozen=True)
class Layer:
    """One candidate: where it is, what kind of layer it is, and what is known of it.

    `obstacle` says why no kernel whatsoever can take its place, or is None. `binding` says how its call becomes a
    kernel's; attention has none, since transformers' interface hands a kernel its arguments.
    """

    path: str
    op: str
    module: torch.nn.Module
    facts: LayerFacts
    obstacle: str | None = None
    binding: Binding | None = None
    rotary: RotaryFunction | None = None


def float_dtype(module: torch.nn.Module) -> str | None:
    """The dtype of the module's first float parameter, by name; None if it has none."""
    found = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
    return None if found is None else str(found).removeprefix("torch.")

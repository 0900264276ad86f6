"""Rotary embeddings: the function by which an attention module rotates its queries and keys, and what it computes.

It is no module: the class's forward calls it by its name in the file that the class is written in. So the layer here
is an attention module together with that name, and the function is probed, not the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from types import FunctionType
from typing import Any, Final

import torch

from tpu_kernels.ops.rotary.reference import rotary_reference
from tpu_kernels.plan.binding import LAYOUTS, ROUNDINGS, TABLES, RotaryFunction, Rotation
from tpu_kernels.plan.layer import Layer, float_dtype
from tpu_kernels.plan.match import LayerFacts
from tpu_kernels.plan.probe import Candidate, ProbeError, find

_HEAD_DIM: Final = 16


def rotary_layer(path: str, module: torch.nn.Module) -> Layer | None:
    """The rotary embedding of an attention module, or None where its forward calls no such function."""
    forward: Any = type(module).forward
    names = rotary_names(forward)
    if not names:
        return None
    name = names[0]
    facts = LayerFacts(class_name=type(module).__name__, dtype=float_dtype(module))

    def kept(obstacle: str) -> Layer:
        return Layer(f"{path}.{name}", "rotary", module, facts, obstacle)

    if len(names) > 1:
        return kept(f"it chooses between {' and '.join(names)}")
    function = forward.__globals__[name]
    tensors = _tensors_taken(function)
    if tensors is None:
        return kept(f"`{name}` does not take one or two tensors, cos and sin")
    found = RotaryFunction(name, tensors, *(_probe(function, tensors, width) for width in (_HEAD_DIM, _HEAD_DIM // 2)))
    rotations = [each for each in (found.full, found.narrow) if each is not None]
    if not rotations:
        return kept(f"`{name}` computes another rotation than by halves or by pairs")
    features = {each.layout for each in rotations} | {f"round_{each.rounding}" for each in rotations}
    features |= {"query_only"} if tensors == 1 else set()
    facts = LayerFacts(facts.class_name, facts.dtype, features=frozenset(features))
    return Layer(f"{path}.{name}", "rotary", module, facts, rotary=found)


def rotary_names(forward: Any) -> list[str]:
    """The global names by which a forward calls rotary embeddings; none if it is wrapped in another function."""
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return []
    names = forward.__code__.co_names
    return [name for name in names if name.startswith("apply_rotary") and name in forward.__globals__]


def _written(function: Any) -> Any:
    """The function as it was written: `kernels` makes modules of some, whose forward hands everything on."""
    if not isinstance(function, torch.nn.Module):
        return function
    forward: Any = function.forward
    cells = inspect.getclosurevars(inspect.unwrap(forward)).nonlocals if "forward" not in vars(function) else {}
    return cells.get("func")


def _tensors_taken(function: Any) -> int | None:
    """1 or 2: how many tensors come before cos and sin."""
    try:
        parameters = inspect.signature(_written(function)).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [each.name for each in parameters if each.default is each.empty]
    count = len(required) - 2
    return count if count in (1, 2) and required[count:] == ["cos", "sin"] else None


def _probe(function: Callable[..., Any], tensors: int, width: int) -> Rotation | None:
    """What the function does with tables of that width."""

    def make(dtype: torch.dtype) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(1)
        states = [torch.randn(2, heads, 5, _HEAD_DIM, generator=generator) for heads in (3, 2)[:tensors]]
        tables = [torch.randn(2, 5, width, generator=generator) for _ in range(2)]

        def call(*inputs: torch.Tensor) -> torch.Tensor:
            rotated = function(*inputs)
            return torch.cat(tuple(rotated), dim=1) if tensors == 2 else rotated

        return call, [each.to(dtype) for each in (*states, *tables)]

    try:
        return find(make, _candidates())
    except ProbeError:  # it does not take tables of this width
        return None


def _candidates() -> Iterator[list[Candidate[Rotation]]]:
    for tables, layout in product(TABLES, LAYOUTS):
        rotations = [Rotation(tables, layout, rounding) for rounding in ROUNDINGS]
        yield [Candidate(rotation, _reference(rotation)) for rotation in rotations]


def _reference(rotation: Rotation) -> Any:
    def run(_: Any, *inputs: torch.Tensor) -> torch.Tensor:
        *states, cos, sin = inputs
        tables = rotation.prepare(cos), rotation.prepare(sin)
        keywords: Any = {"layout": rotation.layout, "rounding": rotation.rounding}
        return torch.cat([rotary_reference(each, *tables, **keywords) for each in states], dim=1)

    return run

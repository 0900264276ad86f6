"""How a layer's own call becomes a kernel's: which of its tensors and which keywords go with the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch.distributed.tensor import DTensor

Tables = Literal["whole", "doubled", "paired"]
"""How cos and sin become one number for each rotated position: as they are, the table followed by itself, or each
number of the first half twice in a row."""

Layout = Literal["half", "interleaved"]
Rounding = Literal["each", "last"]
TABLES: Final[tuple[Tables, ...]] = ("whole", "doubled", "paired")
LAYOUTS: Final[tuple[Layout, ...]] = ("half", "interleaved")
ROUNDINGS: Final[tuple[Rounding, ...]] = ("each", "last")


Part = tuple[str, type[torch.nn.Module], Callable[..., Any] | None]
"""A module inside another: its path, its class, and the forward that was set on the instance."""


@dataclass(frozen=True)
class Reduction:
    """The sum over the ranks of `mesh` that turns the kernel's outputs into the layer's. A deep copy is itself: the
    ranks are the process's.

    bias      path of the module's own tensor that is added to the sum
    shared    paths of those of the kernel's tensors that every rank holds whole and adds its share of
    """

    mesh: Any
    bias: str | None = None
    shared: tuple[str, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Reduction:
        return self


@dataclass(frozen=True)
class Binding:
    """What a kernel is called with in the place of a module.

    inputs    names of the tensors that the module's forward takes, in order; they come first
    tensors   paths of the module's own tensors ("gate_proj.weight"), in the order of the kernel's arguments; None for
              one that it lacks
    keywords  what probing found: `eps`, `activation`, …
    parts     the modules inside, which are not called any more, with the class and forward that they must still have
    functions plain functions that the module keeps, an activation for example, which must still be the same
    own       the forward that the instance had, where it was not its class's
    reduction what must be done with the kernel's output where the tensors are shards
    """

    inputs: tuple[str, ...]
    tensors: tuple[str | None, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    functions: tuple[tuple[str, Any], ...] = ()
    own: Callable[..., Any] | None = None
    reduction: Reduction | None = None


def parts_of(module: torch.nn.Module) -> tuple[Part, ...]:
    """Every module inside, at any depth."""
    return tuple((path, type(part), vars(part).get("forward")) for path, part in module.named_modules() if path)


def functions_of(module: torch.nn.Module) -> tuple[tuple[str, Any], ...]:
    """The functions among a module's own attributes."""
    own = ((name, value) for name, value in vars(module).items() if not name.startswith("_") and name != "forward")
    return tuple((name, value) for name, value in own if callable(value))


def tensor_at(module: torch.nn.Module, path: str | None) -> torch.Tensor | None:
    """The module's tensor at a dotted path, or None."""
    if path is None:
        return None
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    tensor: torch.Tensor | None = value
    return tensor


def local_tensor_at(module: torch.nn.Module, path: str | None) -> torch.Tensor | None:
    """The module's tensor at a dotted path as this process holds it: of a sharded one its own shard."""
    tensor = tensor_at(module, path)
    if isinstance(tensor, DTensor):
        local: torch.Tensor = tensor.to_local()
        return local
    return tensor


def changed_part(module: torch.nn.Module, binding: Binding) -> str | None:
    """What keeps the modules inside from being left out, or None: another class than the planned one (an adapter, a
    quantized layer), training mode, or a hook."""
    for path, kind, forward in binding.parts:
        part: Any = module
        for name in path.split("."):
            part = getattr(part, name, None)
        if type(part) is not kind:
            return f"`{path}` is now a {type(part).__name__}"
        if part.training:
            return f"`{path}` is in training mode"
        if part.__dict__.get("forward") is not forward or part._forward_hooks or part._forward_pre_hooks:
            return f"`{path}` has a forward or a hook of its own"
    for name, function in binding.functions:
        if getattr(module, name, None) is not function:
            return f"`{name}` is another function now"
    return None


@dataclass(frozen=True)
class Rotation:
    """What a function does with tables of some width."""

    tables: Tables
    layout: Layout
    rounding: Rounding

    def prepare(self, table: torch.Tensor) -> torch.Tensor:
        """cos or sin as the kernel takes it."""
        if self.tables == "doubled":
            return torch.cat((table, table), dim=-1)
        if self.tables == "paired":
            return table[..., : table.shape[-1] // 2].repeat_interleave(2, dim=-1)
        return table


@dataclass(frozen=True)
class RotaryFunction:
    """The function of an attention class. `full` is what it does with tables as wide as a head, `narrow` with half of
    that; None where it is no rotation that a kernel does."""

    name: str
    tensors: int
    full: Rotation | None
    narrow: Rotation | None

    def rotation(self, head_dim: int, width: int) -> Rotation | None:
        """What is done with heads and tables of these sizes."""
        if width == head_dim:
            return self.full
        if self.narrow is not None and self.narrow.tables == "doubled" and 2 * width != head_dim:
            return None
        return self.narrow if width < head_dim else None

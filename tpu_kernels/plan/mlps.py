"""MLP layers: which of a model's modules are one, which of their parts is which, and how they gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final, Literal

import torch
from transformers.pytorch_utils import Conv1D

from tpu_kernels.ops.mlp.reference import gated_mlp_reference, mlp_reference
from tpu_kernels.plan.binding import Binding, functions_of, parts_of
from tpu_kernels.plan.gating import SCALES, activations, gating_features, gatings
from tpu_kernels.plan.layer import Layer, float_dtype
from tpu_kernels.plan.match import LayerFacts
from tpu_kernels.plan.probe import Candidate, ProbeError, find, small_copy, tensors_taken

_SMALL: Final = (24, 40)
"""Hidden and intermediate size of the copy that is probed."""


def projections(module: torch.nn.Module) -> dict[str, torch.nn.Module] | None:
    """The two or three plain projections that a module consists of, apart from parts without parameters, by name."""
    children = dict(module.named_children())
    found = {name: child for name, child in children.items() if type(child) in (torch.nn.Linear, Conv1D)}
    others = [child for name, child in children.items() if name not in found]
    if not 2 <= len(found) <= 3 or len({type(child) for child in found.values()}) != 1:
        return None
    if any(True for child in others for _ in child.parameters()) or any(True for _ in module.parameters(recurse=False)):
        return None
    return found


def looks_like_mlp(module: torch.nn.Module) -> bool:
    """Whether a module is called an MLP and has projections among its parts."""
    name = type(module).__name__.lower()
    linear = sum(isinstance(child, torch.nn.Linear | Conv1D) for child in module.children())
    return linear >= 2 and any(word in name for word in ("mlp", "feedforward", "ffn"))


@dataclass(frozen=True)
class Arrangement:
    """Which part is which: the names of the projections in the order gate, up, down, or gate and up in one, down."""

    kind: Literal["gated", "fused", "two_layer"]
    names: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str | None, ...]:
        """The parts in the order of the kernel's weights; None for an up projection that is fused with the gate."""
        return (self.names[0], None, self.names[1]) if self.kind == "fused" else self.names


def mlp_layer(path: str, module: torch.nn.Module) -> Layer | None:
    """The layer of a module that is an MLP; one that is called so and is another has an obstacle; else None."""
    parts = projections(module)
    taken = tensors_taken(module)
    facts = LayerFacts(class_name=type(module).__name__, dtype=float_dtype(module))
    found, obstacle = None, _obstacle(module, parts, taken)
    if parts is not None and taken is not None and len(taken) == 1:
        try:
            found = _probe(module, parts)
        except ProbeError as error:
            obstacle = str(error)
    if found is None or parts is None or taken is None:
        return Layer(path, "mlp", module, facts, obstacle) if looks_like_mlp(module) else None
    arrangement, keywords = found
    facts = LayerFacts(
        class_name=facts.class_name,
        dtype=facts.dtype,
        sizes={
            "hidden": _in_out(parts[arrangement.names[0]])[0],
            "intermediate": _in_out(parts[arrangement.names[-1]])[0],
        },
        features=_features(arrangement, keywords, parts),
    )
    tensors = tuple(f"{name}.weight" if name else None for name in arrangement.arguments)
    tensors += tuple(
        f"{name}.bias" if name and getattr(parts[name], "bias", None) is not None else None
        for name in arrangement.arguments
    )
    return Layer(
        path, "mlp", module, facts, None, Binding(taken, tensors, keywords, parts_of(module), functions_of(module))
    )


def _obstacle(module: torch.nn.Module, parts: dict[str, torch.nn.Module] | None, taken: tuple[str, ...] | None) -> str:
    if parts is None:
        kinds = dict.fromkeys(type(child).__name__ for child in module.children())
        return f"its parts are not two or three plain projections: {', '.join(kinds)}"
    if taken is None or len(taken) != 1:
        return f"it takes {'arguments that cannot be read' if taken is None else ', '.join(taken)}"
    return "it computes something else than a gated or a two-layer MLP with a known activation"


def _features(arrangement: Arrangement, keywords: dict[str, Any], parts: dict[str, torch.nn.Module]) -> frozenset[str]:
    features = gating_features(keywords)
    features.add("two_layer" if arrangement.kind == "two_layer" else "gated")
    if arrangement.kind == "fused":
        features.add("fused_gate_up")
    if any(getattr(part, "bias", None) is not None for part in parts.values()):
        features.add("bias")
    if any(type(part) is Conv1D for part in parts.values()):
        features.add("transposed_weights")
    return frozenset(features)


def _in_out(part: torch.nn.Module) -> tuple[int, int]:
    """Input and output size of a projection; Conv1D keeps its weight transposed."""
    weight: Any = part.weight
    rows, columns = weight.shape
    return (int(rows), int(columns)) if type(part) is Conv1D else (int(columns), int(rows))


def _arrangements(parts: dict[str, torch.nn.Module]) -> Iterator[Arrangement]:
    """Every order of the projections in which their sizes fit together."""
    for names in permutations(parts):
        sizes = [_in_out(parts[name]) for name in names]
        if len(names) == 3 and sizes[0] == sizes[1] and sizes[2][0] == sizes[0][1]:
            yield Arrangement("gated", names)
        elif len(names) == 2 and sizes[0][1] == sizes[1][0]:
            yield Arrangement("two_layer", names)
        elif len(names) == 2 and sizes[0][1] == 2 * sizes[1][0]:
            yield Arrangement("fused", names)


def _probe(module: torch.nn.Module, parts: dict[str, torch.nn.Module]) -> tuple[Arrangement, dict[str, Any]] | None:
    """Which part is which, and the keywords under which the reference computes what the module does."""
    arrangements = list(_arrangements(parts))
    if not arrangements:
        return None
    first = arrangements[0].names
    hidden, wide = _in_out(parts[first[0]])
    intermediate = _in_out(parts[first[-1]])[0]
    sizes = {hidden: _SMALL[0], wide: 2 * _SMALL[1], intermediate: _SMALL[1]}  # where two are equal, the last counts

    def make(dtype: torch.dtype) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        copied = small_copy(module, dtype, sizes)
        width = _in_out(copied.get_submodule(first[0]))[0]
        rows = torch.randn(len(SCALES), 4, width, generator=torch.Generator().manual_seed(1))
        return copied, [(rows * torch.tensor(SCALES).reshape(-1, 1, 1)).to(dtype)]

    return find(make, _candidates(module, arrangements), or_nearer=True)


def _candidates(
    module: torch.nn.Module, arrangements: list[Arrangement]
) -> Iterator[list[Candidate[tuple[Arrangement, dict[str, Any]]]]]:
    conv = any(type(child) is Conv1D for child in module.children())
    for arrangement in arrangements:
        groups: Iterator[list[dict[str, Any]]]
        if arrangement.kind == "two_layer":
            groups = ([{**keywords, "transposed": conv} for keywords in group] for group in activations())
        else:
            groups = iter(()) if conv else gatings(module)
        for group in groups:
            yield [Candidate((arrangement, keywords), _reference(arrangement, keywords)) for keywords in group]


def _reference(arrangement: Arrangement, keywords: dict[str, Any]) -> Any:
    def run(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = [None if name is None else module.get_submodule(name) for name in arrangement.arguments]
        weights: list[Any] = [part and part.weight for part in parts]
        biases: list[Any] = [part and getattr(part, "bias", None) for part in parts]
        reference: Any = mlp_reference if arrangement.kind == "two_layer" else gated_mlp_reference
        computed: torch.Tensor = reference(x, *weights, *biases, **keywords)
        return computed

    return run

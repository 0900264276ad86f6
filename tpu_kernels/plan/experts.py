"""Experts: modules that hold the weights of all experts in three-dimensional tensors, and how they gate.

transformers marks them by `use_experts_implementation`, which says on the instance how the weights lie. What each
expert computes is probed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import torch

from tpu_kernels.ops.experts.reference import experts_reference
from tpu_kernels.plan.binding import Binding, functions_of, parts_of
from tpu_kernels.plan.gating import SCALES, activations, gating_features, gatings
from tpu_kernels.plan.layer import Layer, float_dtype
from tpu_kernels.plan.match import LayerFacts
from tpu_kernels.plan.probe import Candidate, ProbeError, find, small_copy

_EXPERTS, _HIDDEN, _INTERMEDIATE, _TOP_K = 5, 24, 40, 2
_FIRST: Final = ("gate_up_proj", "up_proj")
_MARKS: Final = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "has_post_expert_norm")


def holds_experts(module: torch.nn.Module) -> bool:
    """Whether a module has the weights of experts as tensors of its own."""
    own = dict(module.named_parameters(recurse=False))
    return "down_proj" in own and own["down_proj"].ndim == 3 and any(name in own for name in _FIRST)


def experts_layer(path: str, module: torch.nn.Module) -> Layer:
    """The layer of such a module; one that does otherwise has an obstacle."""
    own = dict(module.named_parameters(recurse=False))
    facts = LayerFacts(class_name=type(module).__name__, dtype=float_dtype(module))
    obstacle = _obstacle(module)
    if obstacle is not None:
        return Layer(path, "experts", module, facts, obstacle)
    marks: Any = module
    try:
        keywords = _probe(module)
        message = "its experts compute something else than a gated or a two-layer MLP with a known activation"
    except ProbeError as error:
        keywords, message = None, str(error)
    if keywords is None:
        return Layer(path, "experts", module, facts, message)
    experts, rows, columns = own["down_proj"].shape
    hidden, intermediate = (columns, rows) if marks.is_transposed else (rows, columns)
    features = gating_features(keywords) | {"gated" if marks.has_gate else "two_layer"}
    features |= {"bias"} if marks.has_bias else set()
    features |= {"transposed_weights"} if marks.is_transposed else set()
    features |= {"interleaved"} if keywords["interleaved"] else set()
    facts = LayerFacts(
        class_name=facts.class_name,
        dtype=facts.dtype,
        sizes={"hidden": int(hidden), "intermediate": int(intermediate), "num_experts": int(experts)},
        features=frozenset(features),
    )
    binding = Binding(_names(module), _tensors(module), keywords, parts_of(module), functions_of(module))
    return Layer(path, "experts", module, facts, None, binding)


def _names(module: torch.nn.Module) -> tuple[str, ...]:
    """Names of the hidden states, the indices and the weights in the class's own forward, which may default some."""
    forward: Any = inspect.unwrap(type(module).forward)
    return tuple(inspect.signature(forward).parameters)[1:4]


def _obstacle(module: torch.nn.Module) -> str | None:
    if not all(hasattr(module, mark) for mark in _MARKS):
        return "it is not called with the experts of each token"
    marks: Any = module
    if marks.has_post_expert_norm:
        return "a norm follows each expert"
    known = {"gate_up_proj" if marks.has_gate else "up_proj", "down_proj"}
    known |= {f"{name}_bias" for name in known} if marks.has_bias else set()
    others = sorted({name for name, _ in module.named_parameters()} - known)
    return f"it has further parameters: {', '.join(others)}" if others else None


def _tensors(module: torch.nn.Module) -> tuple[str | None, ...]:
    marks: Any = module
    first = "gate_up_proj" if marks.has_gate else "up_proj"
    biases = (f"{first}_bias", "down_proj_bias") if marks.has_bias else (None, None)
    return (first, "down_proj", *biases)


def _probe(module: torch.nn.Module) -> dict[str, Any] | None:
    """The keywords under which `experts_reference` computes what the module's own loop over experts does."""
    marks: Any = module
    experts, rows, columns = marks.down_proj.shape
    hidden, intermediate = (columns, rows) if marks.is_transposed else (rows, columns)
    # Where two sizes are equal, the last counts.
    sizes = {experts: _EXPERTS, hidden: _HIDDEN, 2 * intermediate: 2 * _INTERMEDIATE, intermediate: _INTERMEDIATE}

    def make(dtype: torch.dtype) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        copied: Any = small_copy(module, dtype, sizes)
        width = copied.down_proj.shape[2 if marks.is_transposed else 1]
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randn(len(SCALES), width, generator=generator)
        tokens = tokens * torch.tensor(SCALES).reshape(-1, 1)
        choice = torch.stack([torch.randperm(copied.down_proj.shape[0], generator=generator)[:_TOP_K] for _ in tokens])
        weights = torch.rand(len(tokens), choice.shape[1], generator=generator) + 0.1
        return copied, [tokens.to(dtype), choice, weights.to(dtype)]

    return find(make, _candidates(module), or_nearer=True)


def _candidates(module: torch.nn.Module) -> Iterator[list[Candidate[dict[str, Any]]]]:
    marks: Any = module
    layout = {
        "gated": bool(marks.has_gate),
        "transposed": bool(marks.is_transposed),
        "interleaved": bool(marks.has_gate and not marks.is_concatenated),
    }
    for group in gatings(module) if marks.has_gate else activations():
        full = [{**gating, **layout} for gating in group]
        yield [Candidate(keywords, _reference(keywords)) for keywords in full]


def _reference(keywords: dict[str, Any]) -> Any:
    def run(
        module: torch.nn.Module, hidden: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        own: list[Any] = [getattr(module, name) if name else None for name in _tensors(module)]
        return experts_reference(hidden, indices, weights, *own, **keywords)

    return run

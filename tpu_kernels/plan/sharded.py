"""What tensor parallelism has made of a layer, and what a kernel in its place must do.

`from_pretrained(distributed_config=...)` turns parameters into shards (DTensors) and gives modules a forward that does
what their style of parallelism asks for before and after their own. A kernel takes the local shards; where they are
shards of the dimension that the layer sums over, its outputs are summed over the ranks as the model's own are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from tpu_kernels.plan.binding import Binding, Reduction, parts_of, tensor_at
from tpu_kernels.plan.layer import Layer
from tpu_kernels.plan.match import LayerFacts

_STYLES: Final = "transformers.distributed.tensor_parallel"
_ALIKE: Final = (
    "TensorParallelLayer",
    "ColwiseParallel",
    "PackedColwiseParallel",
    "PackedRowwiseParallel",
    "ReplicatedWithGradAllReduce",
    "AllReduceParallel",
    "KeyValueHeadsParallel",
    "HeadsParallel",
)
"""Styles that trace the same graph on every rank."""
_SUMMED_EXPERTS: Final = ("MoeExpertsParallel", "SharedBiasParallel")
"""Styles of experts whose parts are summed: transformers' own, and runtime/parallel_styles.py's with biases."""
_SHARDED_DIFFERENTLY: Final = "its weights are sharded in a way that no kernel expects"


@dataclass(frozen=True)
class Style:
    """A forward that transformers' tensor parallelism set on a module: the class of the style, the style itself (None
    where its forward does not keep it), and the forward beneath."""

    name: str
    style: Any
    mesh: Any
    expert_parallel: bool
    inner: Callable[..., Any]


def style_of(module: torch.nn.Module) -> Style | None:
    """The style of parallelism that a module's forward was replaced for, or None."""
    forward: Any = vars(module).get("forward")
    if getattr(forward, "__module__", None) != _STYLES or getattr(forward, "__closure__", None) is None:
        return None
    kept = dict(zip(forward.__code__.co_freevars, (cell.cell_contents for cell in forward.__closure__), strict=True))
    if "original_forward" not in kept:
        return None
    style = kept.get("self")
    name = type(style).__name__ if style is not None else forward.__qualname__.split(".", 1)[0]
    parallel = bool(kept.get("is_expert_parallel", False))
    return Style(name, style, kept.get("mesh"), parallel, kept["original_forward"])


def is_only_parallel(module: torch.nn.Module) -> bool:
    """Whether the only forward set on the module's instance is that of its style, around its class's own."""
    style = style_of(module)
    return style is not None and getattr(style.inner, "__func__", None) is type(module).forward


def depends_on_rank(module: torch.nn.Module) -> str | None:
    """What makes the graph of one rank another than the next one's: the name of its style, or None."""
    style = style_of(module)
    if style is None or style.name in _ALIKE:
        return None
    if style.name == "RowwiseParallel":
        return style.name if style.style.input_layouts != Shard(-1) else None
    if style.name == "EmbeddingParallel":
        return style.name if style.style.shard_dim == 0 else None
    if style.name in _SUMMED_EXPERTS:
        return style.name if style.expert_parallel else None
    return style.name


def localized(layer: Layer) -> Layer:
    """The layer as this rank has it: local sizes, the sum over the ranks, or what stands against any kernel."""
    binding = layer.binding
    if binding is None or layer.obstacle is not None:
        return layer
    module = layer.module
    binding = replace(binding, parts=parts_of(module), own=_own_forward(module))
    tensors = [tensor_at(module, path) for path in binding.tensors]
    if not _is_parallel(module, tensors):
        return replace(layer, binding=binding)
    if any(isinstance(each, DTensor) and each.device_mesh.ndim != 1 for each in tensors):
        return replace(layer, obstacle="its weights are sharded over several dimensions of ranks")
    find = {"norm": _norm, "mlp": _mlp, "experts": _experts}.get(layer.op)
    found = find(module, binding, layer.facts) if find is not None else _SHARDED_DIFFERENTLY
    if isinstance(found, str):
        return replace(layer, obstacle=found)
    return replace(layer, binding=found, facts=_local_facts(layer, found))


def _own_forward(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The forward that the instance had before any of ours."""
    forward = vars(module).get("forward")
    return None if getattr(forward, "__func__", None) is not None else forward


def _is_parallel(module: torch.nn.Module, tensors: list[torch.Tensor | None]) -> bool:
    styled = any(style_of(part) is not None for part in module.modules())
    return styled or any(isinstance(each, DTensor) for each in tensors)


def _local_facts(layer: Layer, binding: Binding) -> LayerFacts:
    if binding.reduction is None or "intermediate" not in layer.facts.sizes:
        return layer.facts
    sizes = dict(layer.facts.sizes)
    sizes["intermediate"] //= binding.reduction.mesh.size()
    return replace(layer.facts, sizes=sizes)


def _norm(module: torch.nn.Module, binding: Binding, facts: LayerFacts) -> Binding | str:
    style = style_of(module)
    if style is not None and style.name != "ReplicatedWithGradAllReduce":
        return f"its output is gathered or scattered between the ranks ({style.name})"
    if any(_is_shard(tensor_at(module, path)) for path in binding.tensors):
        return "its weight is sharded, and each rank sees a part of what it normalizes"
    return binding


def _mlp(module: torch.nn.Module, binding: Binding, facts: LayerFacts) -> Binding | str:
    half = len(binding.tensors) // 2
    weights, biases = binding.tensors[:half], binding.tensors[half:]
    *first, last = (path.rsplit(".", 1)[0] for path in weights if path is not None)
    if style_of(module) is not None:
        return _SHARDED_DIFFERENTLY
    styles = {name: style_of(module.get_submodule(name)) for name in (*first, last)}
    down = styles[last]
    if all(style is None for style in styles.values()):
        return _SHARDED_DIFFERENTLY if any(_is_shard(tensor_at(module, path)) for path in binding.tensors) else binding
    fused = "fused_gate_up" in facts.features
    if not all(_splits_columns(styles[name], fused) for name in first) or down is None or not _splits_rows(down):
        kinds = ", ".join(f"{name}: {style.name if style else 'whole'}" for name, style in styles.items())
        return f"its parts are not split once and summed once ({kinds})"
    if facts.sizes["intermediate"] % down.mesh.size():
        return f"{down.mesh.size()} ranks do not divide its intermediate size {facts.sizes['intermediate']}"
    # A bias behind the sum is added once, not by each rank.
    return replace(
        binding, tensors=(*weights, *biases[:-1], None), reduction=Reduction(down.mesh, biases[-1] if biases else None)
    )


def _experts(module: torch.nn.Module, binding: Binding, facts: LayerFacts) -> Binding | str:
    style = style_of(module)
    if style is not None and (style.name not in _SUMMED_EXPERTS or style.expert_parallel):
        return "its experts are divided among the ranks (expert parallelism)"
    first, last = (tensor_at(module, path) for path in binding.tensors[:2])
    if not _is_shard(first) and not _is_shard(last):
        return binding
    if style is None:
        return _SHARDED_DIFFERENTLY
    biased = "bias" in facts.features
    if biased != (style.name == "SharedBiasParallel"):
        return "its experts have biases, which every rank would add to its part of the sum"
    transposed = "transposed_weights" in facts.features
    interleaved = "interleaved" in facts.features
    columns, rows = (2, 1) if transposed else (1, 2)
    wanted_split = 2 if "gated" in facts.features and not interleaved else 1
    if _split(first, columns) != wanted_split or _split(last, rows) != 1:
        return _SHARDED_DIFFERENTLY
    shared = binding.tensors[3] if biased else None
    if biased and (
        _split(tensor_at(module, binding.tensors[2]), 1) != wanted_split or _is_shard(tensor_at(module, shared))
    ):
        return _SHARDED_DIFFERENTLY
    if facts.sizes["intermediate"] % style.mesh.size():
        return f"{style.mesh.size()} ranks do not divide its intermediate size {facts.sizes['intermediate']}"
    return replace(binding, reduction=Reduction(style.mesh, shared=(shared,) if shared is not None else ()))


def _splits_columns(style: Style | None, fused: bool) -> bool:
    """Whether each rank gives its own slice of the outputs; of gate and up alike where both are in one weight."""
    if style is None or style.style is None or not style.style.use_local_output:
        return False
    if style.name == "PackedColwiseParallel":
        return fused and style.style.split_factor == 2
    layouts = (style.style.input_layouts, style.style.output_layouts) if style.name == "ColwiseParallel" else None
    return not fused and layouts == (Replicate(), Shard(-1))


def _splits_rows(style: Style) -> bool:
    """Whether each rank takes its own slice of the inputs, and the outputs are summed."""
    if style.name != "RowwiseParallel" or style.style is None or not style.style.use_local_output:
        return False
    return bool((style.style.input_layouts, style.style.output_layouts) == (Shard(-1), Replicate()))


def _is_shard(tensor: torch.Tensor | None) -> bool:
    return isinstance(tensor, DTensor) and any(not placement.is_replicate() for placement in tensor.placements)


def _split(tensor: torch.Tensor | None, dim: int) -> int | None:
    """Into how many groups along `dim` a tensor is divided before each rank gets its part of every group; None if it
    is not sharded along `dim`."""
    if not isinstance(tensor, DTensor):
        return None
    placement: Any = tensor.placements[0]
    if getattr(placement, "dim", None) is None or placement.dim % tensor.ndim != dim:
        return None
    return int(getattr(placement, "split_factor", 1))

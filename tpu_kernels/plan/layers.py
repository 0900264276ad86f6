"""All layers of a model that a kernel could replace, of every op, in module order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from tpu_kernels.plan.experts import experts_layer, holds_experts
from tpu_kernels.plan.layer import Layer
from tpu_kernels.plan.mlps import looks_like_mlp, mlp_layer, projections
from tpu_kernels.plan.model_view import attention_layers
from tpu_kernels.plan.norms import is_norm, norm_layer
from tpu_kernels.plan.probe import kind_of
from tpu_kernels.plan.rotary import rotary_layer

_REPLACED: Final = "its forward was replaced by another one"
_Finder = Callable[[str, torch.nn.Module], Layer | None]


def candidate_layers(model: PreTrainedModel) -> Iterator[Layer]:
    """Every layer of `model` that some op could replace. One module of each kind is probed."""
    attention = {layer.path: layer for layer in attention_layers(model)}
    known: dict[Any, Layer | None] = {}
    rotations: dict[type[torch.nn.Module], Layer | None] = {}
    for path, module in model.named_modules():
        if path in attention:
            yield attention[path]
            if attention[path].obstacle is None:
                yield from _rotary(path, module, rotations)
            continue
        finder = _finder_of(module)
        if finder is None:
            continue
        kind = kind_of(module)
        if kind not in known:
            known[kind] = finder(path, module)
        layer = known[kind]
        if layer is not None:
            replaced = layer.obstacle is None and "forward" in vars(module)
            yield replace(layer, path=path, module=module, obstacle=_REPLACED if replaced else layer.obstacle)


def _rotary(path: str, module: torch.nn.Module, known: dict[type[torch.nn.Module], Layer | None]) -> Iterator[Layer]:
    """The rotary embedding of an attention module; one module of each class is looked at."""
    kind = type(module)
    if kind not in known:
        known[kind] = rotary_layer(path, module)
    layer = known[kind]
    if layer is not None:
        obstacle = _REPLACED if layer.obstacle is None and "forward" in vars(module) else layer.obstacle
        name = layer.path.rsplit(".", 1)[1]
        yield replace(layer, path=f"{path}.{name}", module=module, obstacle=obstacle)


def _finder_of(module: torch.nn.Module) -> _Finder | None:
    if is_norm(module):
        return norm_layer
    if holds_experts(module):
        return experts_layer
    if looks_like_mlp(module) or projections(module) is not None:
        return mlp_layer
    return None

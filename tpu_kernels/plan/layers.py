"""All layers of a model that a kernel could replace, of every op, in module order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from tpu_kernels.plan.experts import experts_layer, holds_experts
from tpu_kernels.plan.layer import Layer, float_dtype
from tpu_kernels.plan.match import LayerFacts
from tpu_kernels.plan.mlps import looks_like_mlp, mlp_layer, projections
from tpu_kernels.plan.model_view import attention_layers
from tpu_kernels.plan.norms import is_norm, norm_layer
from tpu_kernels.plan.probe import kind_of
from tpu_kernels.plan.rotary import rotary_layer
from tpu_kernels.plan.sharded import is_only_parallel, localized

_REPLACED: Final = "its forward was replaced by another one"
OURS: Final = "_tpu_kernels_forward"
"""Set on a forward that an enabled module got from us."""

_Finder = Callable[[str, torch.nn.Module], Layer | None]


def candidate_layers(model: PreTrainedModel) -> Iterator[Layer]:
    """Every layer of `model` that some op could replace. One module of each kind is probed."""
    attention = {layer.path: layer for layer in attention_layers(model)}
    known: dict[Any, Layer | None] = {}
    for path, module in model.named_modules():
        if path in attention:
            yield attention[path]
            if attention[path].obstacle is None:
                yield from _rotary(path, module, known)
            continue
        op, finder = _finder_of(module)
        if finder is None:
            continue
        if any(_is_replaced(part) for part in module.modules()):
            if op != "mlp" or looks_like_mlp(module):
                facts = LayerFacts(class_name=type(module).__name__, dtype=float_dtype(module))
                yield Layer(path, op, module, facts, _REPLACED)
            continue
        kind = kind_of(module)
        if kind not in known:
            known[kind] = _found(finder, op, path, module)
        layer = known[kind]
        if layer is not None:
            yield localized(replace(layer, path=path, module=module))


def _found(finder: _Finder, op: str, path: str, module: torch.nn.Module) -> Layer | None:
    """What a finder says; a module that it cannot look at is kept."""
    try:
        with torch.device("cpu"):  # whatever the user's default device is
            return finder(path, module)
    except Exception as error:
        facts = LayerFacts(class_name=type(module).__name__, dtype=float_dtype(module))
        return Layer(path, op, module, facts, f"it could not be looked at: {type(error).__name__}: {error}")


def _is_replaced(module: torch.nn.Module) -> bool:
    """Whether somebody else has set a forward on the instance, apart from transformers' tensor parallelism."""
    forward = vars(module).get("forward")
    return forward is not None and not getattr(forward, OURS, False) and not is_only_parallel(module)


def _rotary(path: str, module: torch.nn.Module, known: dict[Any, Layer | None]) -> Iterator[Layer]:
    """The rotary embedding of an attention module; one module of each class is looked at."""
    kind = type(module)
    if kind not in known:
        known[kind] = _found(rotary_layer, "rotary", path, module)
    layer = known[kind]
    if layer is not None:
        obstacle = _REPLACED if layer.obstacle is None and _is_replaced(module) else layer.obstacle
        name = layer.path.rsplit(".", 1)[1]
        yield replace(layer, path=f"{path}.{name}", module=module, obstacle=obstacle)


def _finder_of(module: torch.nn.Module) -> tuple[str, _Finder | None]:
    if is_norm(module):
        return "norm", norm_layer
    if holds_experts(module):
        return "experts", experts_layer
    if looks_like_mlp(module) or projections(module) is not None:
        return "mlp", mlp_layer
    return "", None

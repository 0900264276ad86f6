"""The rotary embedding of one enabled attention module.

The class's forward calls a function of its file by name. The module gets a forward of its own with the same code,
whose globals have our function under that name: neither the class nor the file is touched.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from tpu_kernels.plan.binding import RotaryFunction, Rotation
from tpu_kernels.runtime.dispatch import LayerDispatch
from tpu_kernels.runtime.modules import OWN_CODE


class RotaryForward:
    """The forward of an attention module: its class's own code, in which the rotary embedding is the layer's.

    A deep copy belongs to the copied module and layer.
    """

    _tpu_kernels_forward = True

    def __init__(self, module: torch.nn.Module, rotary: RotaryFunction, layer: LayerDispatch | None) -> None:
        self.module, self.rotary, self.layer = module, rotary, layer
        original: Any = type(module).forward
        self.original = original
        self.__signature__ = inspect.signature(MethodType(original, module))
        names = {**original.__globals__, rotary.name: _rotate_with(rotary, layer, original.__globals__[rotary.name])}
        # Dynamo looks a global up in the module that __name__ names, and in these globals only where there is none.
        del names["__name__"]
        self.function = FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        self.function.__kwdefaults__ = original.__kwdefaults__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if type(self.module).forward is not self.original:  # the class was given another one meanwhile
            return type(self.module).forward(self.module, *args, **kwargs)
        return self.function(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> RotaryForward:
        module, layer = copy.deepcopy(self.module, memo), copy.deepcopy(self.layer, memo)
        return RotaryForward(module, self.rotary, layer)


def _rotate_with(
    rotary: RotaryFunction, layer: LayerDispatch | None, original: Callable[..., Any]
) -> Callable[..., Any]:
    """What such a forward calls in the place of its rotary embedding, with the same arguments."""

    def rotate(*args: Any, **kwargs: Any) -> Any:
        if layer is None or kwargs.keys() - {"unsqueeze_dim"} or len(args) != rotary.tensors + 2:
            return original(*args, **kwargs)
        *states, cos, sin = args
        unsqueeze_dim = kwargs.get("unsqueeze_dim", 1)
        rotation = rotary.rotation(int(states[0].shape[-1]), int(cos.shape[-1]))
        if not _decide(layer, states, cos, sin, rotation, unsqueeze_dim):
            return original(*args, **kwargs)
        rotated = []
        for state in states:
            out = _rotate(layer, rotation, state, cos, sin, unsqueeze_dim) if rotation is not None else None
            if out is None:
                layer.note_fallback(OWN_CODE)
                return original(*args, **kwargs)
            rotated.append(out)
        return tuple(rotated) if rotary.tensors == 2 else rotated[0]

    return rotate


def _decide(
    layer: LayerDispatch,
    states: list[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    rotation: Rotation | None,
    unsqueeze_dim: int,
) -> bool:
    first = states[0]
    features = []
    if rotation is not None:
        features = [rotation.layout, f"round_{rotation.rounding}"]
        features += ["partial"] if _width(rotation, cos) < first.shape[-1] else []
        features += ["query_only"] if len(states) == 1 else []
    positions = 2 if unsqueeze_dim == 1 else 1
    use_kernel: bool = layer.decide(
        layer.facts.class_name if layer.facts is not None else "",
        str(first.dtype).removeprefix("torch."),
        (
            ("head_dim", int(first.shape[-1])),
            ("rotary_dim", 0 if rotation is None else _width(rotation, cos)),
            ("tokens", int(first.shape[0] * first.shape[positions]) if first.ndim == 4 else 0),
        ),
        tuple(features),
        _obstacle(states, cos, sin, rotation, unsqueeze_dim),
        OWN_CODE,
        "decode" if first.ndim == 4 and first.shape[positions] == 1 else "prefill",
        torch.compiler.is_dynamo_compiling(),
    )
    return use_kernel


def _width(rotation: Rotation, cos: torch.Tensor) -> int:
    return int(cos.shape[-1]) * (2 if rotation.tables == "doubled" else 1)


def _obstacle(
    states: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor, rotation: Rotation | None, unsqueeze_dim: int
) -> str | None:
    if rotation is None:
        return "it does another rotation with tables of this width"
    positions = 2 if unsqueeze_dim == 1 else 1
    if (
        unsqueeze_dim not in (1, 2)
        or cos.ndim != 3
        or cos.shape != sin.shape
        or any(state.ndim != 4 or state.numel() == 0 for state in states)
        or any(cos.shape[0] not in (1, s.shape[0]) or cos.shape[1] != s.shape[positions] for s in states)
    ):
        return f"shapes that no kernel takes: {tuple(states[0].shape)}, cos {tuple(cos.shape)}"
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*states, cos)):
        return "gradients are wanted (torch.no_grad() or torch.inference_mode() allows the kernel)"
    if any(state.dtype != cos.dtype for state in states):
        return f"the tables are {cos.dtype}, the input is {states[0].dtype}"
    return None


def _rotate(
    layer: LayerDispatch,
    rotation: Rotation,
    state: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int,
) -> torch.Tensor | None:
    by_head = state if unsqueeze_dim == 1 else state.transpose(1, 2)
    arguments = (by_head, rotation.prepare(cos), rotation.prepare(sin))
    keywords: dict[str, Any] = {"layout": rotation.layout, "rounding": rotation.rounding}
    if torch.compiler.is_dynamo_compiling():
        out: torch.Tensor | None = layer.call_kernel(*arguments, **keywords)
    else:
        out = layer.try_kernel(*arguments, **keywords)
    return out if out is None or unsqueeze_dim == 1 else out.transpose(1, 2)

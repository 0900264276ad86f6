"""The forward of an enabled module that is not attention: its kernel where that covers the call, else its own code."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor

from tpu_kernels.plan.binding import Binding, changed_part, local_tensor_at
from tpu_kernels.plan.layers import OURS
from tpu_kernels.runtime.dispatch import LAYER_ATTRIBUTE, LayerDispatch

OWN_CODE: Final = "own code"
"""What a fallback of such a module is called in reports."""


def module_forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What an enabled module does when it is called; arguments and result as its class has them."""
    layer: LayerDispatch | None = getattr(module, LAYER_ATTRIBUTE, None)
    if layer is None or layer.binding is None or layer.facts is None or not _is_tensor(args, kwargs):
        return _own(module, *args, **kwargs)
    inputs = _inputs(layer.binding, args, kwargs)
    hidden = args[0] if args else next(iter(kwargs.values()))
    changed = changed_part(module, layer.binding)
    tensors = [] if changed is not None else _tensors(module, layer.binding)
    use_kernel = layer.decide(
        layer.facts.class_name,
        str(hidden.dtype).removeprefix("torch."),
        _sizes(layer, hidden, inputs),
        tuple(sorted(layer.facts.features)),
        f"a part was replaced: {changed}" if changed is not None else _obstacle(module, layer, inputs, tensors),
        OWN_CODE,
        _phase(hidden),
        torch.compiler.is_dynamo_compiling(),
    )
    if not use_kernel or inputs is None:
        return _own(module, *args, **kwargs)
    if torch.compiler.is_dynamo_compiling():
        return _reduced(module, layer.binding, layer.call_kernel(*inputs, *tensors, **layer.binding.keywords))
    output = layer.try_kernel(*inputs, *tensors, **layer.binding.keywords)
    if output is None:
        layer.note_fallback(OWN_CODE)
        return _own(module, *args, **kwargs)
    return _reduced(module, layer.binding, output)


def _tensors(module: torch.nn.Module, binding: Binding) -> list[torch.Tensor | None]:
    """The module's own tensors as the kernel takes them: this rank's shards, and its share of what all ranks add."""
    reduction, tensors = binding.reduction, []
    for path in binding.tensors:
        tensor = local_tensor_at(module, path)
        if tensor is not None and reduction is not None and path in reduction.shared:
            tensor = tensor / reduction.mesh.size()
        tensors.append(tensor)
    return tensors


def _reduced(module: torch.nn.Module, binding: Binding, output: torch.Tensor) -> torch.Tensor:
    """The layer's output from the kernel's: as the kernel gave it, or summed over the ranks that hold the shards."""
    if binding.reduction is None:
        return output
    torch.distributed.all_reduce(output, group=binding.reduction.mesh.get_group())
    bias = local_tensor_at(module, binding.reduction.bias)
    return output if bias is None else output + bias


def _is_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the first thing that was passed is a tensor, by which a call is judged."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    return isinstance(first, torch.Tensor) and first.ndim > 0


setattr(module_forward, OURS, True)


def _own(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    layer: LayerDispatch | None = getattr(module, LAYER_ATTRIBUTE, None)
    if layer is not None and layer.binding is not None and layer.binding.own is not None:
        return layer.binding.own(*args, **kwargs)
    return type(module).forward(module, *args, **kwargs)


def _inputs(binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The tensors that the module's forward takes, however they were passed; None for another kind of call."""
    given = list(args)
    for name in binding.inputs[len(given) :]:
        if name in kwargs:
            given.append(kwargs[name])
    if len(given) != len(binding.inputs) or len(args) + len(kwargs) != len(given):
        return None
    return given if all(isinstance(each, torch.Tensor) for each in given) else None


def _sizes(
    layer: LayerDispatch, hidden: torch.Tensor, inputs: list[torch.Tensor] | None
) -> tuple[tuple[str, int], ...]:
    """What the plan knew, and what the call adds: rows, the last dimension, experts per token."""
    sizes = dict(layer.facts.sizes) if layer.facts is not None else {}
    sizes["hidden"] = int(hidden.shape[-1])
    sizes["tokens"] = int(hidden.numel() // max(1, hidden.shape[-1]))
    if layer.op == "experts" and inputs is not None:
        sizes["top_k"] = int(inputs[1].shape[-1])
    return tuple(sizes.items())


def _phase(hidden: torch.Tensor) -> str:
    """Of an eager call, from the input's shape; flattened tokens tell nothing."""
    if hidden.ndim < 3:
        return "call"
    return "decode" if hidden.shape[1] == 1 else "prefill"


def _obstacle(
    module: torch.nn.Module, layer: LayerDispatch, inputs: list[torch.Tensor] | None, tensors: list[torch.Tensor | None]
) -> str | None:
    """What in the call itself, apart from sizes, keeps it from any kernel."""
    if inputs is None:
        names = layer.binding.inputs if layer.binding is not None else ()
        return f"it was called with other arguments than {', '.join(names)}"
    hidden = inputs[0]
    present = [each for each in tensors if each is not None]
    if module.training:
        return "the model is in training mode"
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*inputs, *present)):
        return "gradients are wanted (torch.no_grad() or torch.inference_mode() allows the kernel)"
    if isinstance(hidden, DTensor):
        return "its input is sharded"
    if any(type(each) not in (torch.Tensor, torch.nn.Parameter) for each in present):
        return "its weights are no plain tensors"
    width = layer.facts.sizes.get("hidden") if layer.facts is not None else None
    if hidden.numel() == 0 or width not in (None, hidden.shape[-1]):
        return f"an input of the shape {list(hidden.shape)}"
    other = next((each.dtype for each in present if each.dtype != hidden.dtype), None)
    if other is not None:
        return f"its weights are {other}, the input is {hidden.dtype}"
    return None

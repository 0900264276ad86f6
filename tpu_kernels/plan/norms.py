"""Norm layers: which of a model's modules are one, and which variant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import torch

from tpu_kernels.ops.norm.reference import norm_reference
from tpu_kernels.plan.binding import Binding
from tpu_kernels.plan.layer import Layer, float_dtype
from tpu_kernels.plan.match import LayerFacts
from tpu_kernels.plan.probe import Candidate, ProbeError, find, settings_of, small_copy, tensors_taken

_EPSILONS: Final = (1e-5, 1e-6, 1e-8, 1e-12, float(torch.finfo(torch.float32).eps), 0.0)
_WIDTH: Final = 48
"""Of the copy that is probed, and of the input of a module that has no width of its own."""
_ORDERS: Final = ("round_then_scale", "scale_then_round", "round_offset")


def is_norm(module: torch.nn.Module) -> bool:
    """Whether a module is called a norm and has no parts."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def norm_layer(path: str, module: torch.nn.Module) -> Layer:
    """The layer of such a module; one that no variant describes has an obstacle."""
    tensors = dict(module.named_parameters(recurse=False))
    dtype = float_dtype(module)
    facts = LayerFacts(class_name=type(module).__name__, dtype=dtype)

    def kept(obstacle: str) -> Layer:
        return Layer(path, "norm", module, facts, obstacle)

    taken = tensors_taken(module)
    if taken is None or len(taken) != 1:
        return kept(f"it takes {'arguments that cannot be read' if taken is None else ', '.join(taken)}")
    unusual = [name for name, tensor in tensors.items() if name not in ("weight", "bias") or tensor.ndim not in (1, 2)]
    if unusual:
        return kept(f"it has other parameters than a weight and a bias: {', '.join(unusual)}")
    try:
        found = _probe(module)
    except ProbeError as error:
        return kept(str(error))
    if found is None:
        return kept("it computes something else than RMSNorm or LayerNorm over the last dimension")
    width = tensors["weight"].shape[-1] if "weight" in tensors else None
    facts = LayerFacts(
        class_name=type(module).__name__,
        dtype=dtype,
        sizes={} if width is None else {"hidden": int(width)},
        features=_features(found, tensors),
    )
    own = tuple(name if name in tensors else None for name in ("weight", "bias"))
    return Layer(path, "norm", module, facts, None, Binding(taken, own, found))


def _features(found: dict[str, Any], tensors: dict[str, Any]) -> frozenset[str]:
    features = {"layer_norm" if found["center"] else "rms_norm"} | (tensors.keys() & {"weight", "bias"})
    if "weight" in tensors:
        features.add("round_then_scale" if found["order"] == "round_then_scale" else "scale_then_round")
    if found["offset"]:
        features.add("weight_offset")
    return frozenset(features)


def _probe(module: torch.nn.Module) -> dict[str, Any] | None:
    """The keywords under which `norm_reference` computes what the module does."""

    width = next((each.shape[-1] for each in module.parameters()), _declared_width(module))
    sizes = {width: _WIDTH} if width > _WIDTH else {}

    def make(dtype: torch.dtype) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        copied = small_copy(module, dtype, sizes)
        shape = next((tuple(each.shape) for each in copied.parameters()), (_declared_width(copied),))
        rows = torch.randn(7, 5, *shape, generator=torch.Generator().manual_seed(1))
        # A mean that is not 0; sizes at which an epsilon tells; rows of zeros, as padding has them.
        scales = torch.tensor([1.0, 30.0, 1e-1, 1e-2, 1e-3, 1e-4, 0.0]).reshape(7, 1, *(1 for _ in shape))
        return copied, [((rows + 0.5) * scales).to(dtype)]

    return find(make, _candidates(module))


def _declared_width(module: torch.nn.Module) -> int:
    shape = getattr(module, "normalized_shape", None)
    if isinstance(shape, int):
        return shape
    return int(shape[-1]) if shape else _WIDTH


def _candidates(module: torch.nn.Module) -> Iterator[list[Candidate[dict[str, Any]]]]:
    tensors = dict(module.named_parameters(recurse=False))
    has_weight = "weight" in tensors
    own = [value for value in settings_of(module).values() if isinstance(value, float) and 0 <= value < 1e-2]
    for eps, center, offset in product(
        dict.fromkeys((*own, *_EPSILONS)),
        (True,) if "bias" in tensors else (False, True),
        (0.0, 1.0) if has_weight else (0.0,),
    ):
        orders = _ORDERS[: 3 if offset else 2] if has_weight else _ORDERS[1:2]
        group = [{"eps": eps, "center": center, "offset": offset, "order": order} for order in orders]
        yield [Candidate(keywords, _reference(keywords)) for keywords in group]


def _reference(keywords: dict[str, Any]) -> Any:
    def run(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        tensors = dict(module.named_parameters(recurse=False))
        return norm_reference(x, tensors.get("weight"), tensors.get("bias"), **keywords)

    return run

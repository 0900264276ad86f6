"""What of a model the rules are about, looked at once: modules and parameters by the keys of their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedModel
from transformers.distributed.tensor_parallel import replace_layer_number_by_wildcard

from tpu_kernels.plan.experts import holds_experts
from tpu_kernels.plan.mlps import mlp_layer, projections
from tpu_kernels.plan.model_view import attention_layers
from tpu_kernels.plan.probe import kind_of


def wildcard(path: str) -> str:
    """The path with each layer's number replaced by `*`, as rules are written."""
    return str(replace_layer_number_by_wildcard(path))


@dataclass(frozen=True)
class Group:
    """The modules that one rule is about: those whose paths differ in layer numbers alone."""

    key: str
    paths: tuple[str, ...]
    modules: tuple[torch.nn.Module, ...]

    def child(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model: its path, the key of its rule, its name in its module, its shape and dtype."""

    path: str
    key: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Mlp:
    """An MLP whose parts are known: paths of its projections; `up` is None where it is fused with the gate."""

    gate: str
    up: str | None
    down: str
    two_layer: bool
    fused_bias: bool


class Structure:
    """Modules and parameters of a model; nothing here depends on the number of chips."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.own_plan: dict[str, str] = dict(model.tp_plan)
        self.tied: dict[str, str] = dict(getattr(model, "all_tied_weights_keys", None) or {})
        self.parameters = tuple(
            Parameter(path, wildcard(path), path.rsplit(".", 1)[-1], tuple(each.shape), each.dtype)
            for path, each in model.named_parameters(remove_duplicate=False)
        )
        self.by_key = {each.key: each for each in self.parameters}
        paths: dict[str, list[tuple[str, torch.nn.Module]]] = {}
        for path, module in model.named_modules():
            paths.setdefault(wildcard(path), []).append((path, module))
        self.groups = {
            key: Group(key, tuple(path for path, _ in found), tuple(module for _, module in found))
            for key, found in paths.items()
        }
        self._mlps: dict[str, Mlp | None] = {}

    @cached_property
    def attention(self) -> tuple[Group, ...]:
        """The attention layers that carry a config, those of one rule together."""
        found = (layer.path for layer in attention_layers(self.model) if hasattr(layer.module, "config"))
        return tuple(self.groups[key] for key in dict.fromkeys(map(wildcard, found)))

    @cached_property
    def _decoder(self) -> str:
        """The path of the part that generates text, with a dot at its end; "" where that is the whole model."""
        try:
            decoder = self.model.get_decoder()
        except (AttributeError, NotImplementedError):
            return ""
        path = next((path for path, module in self.model.named_modules() if module is decoder), "")
        return f"{path}." if path else ""

    def in_decoder(self, key: str) -> bool:
        """Whether a module is inside the part that generates text."""
        return key.startswith(self._decoder)

    def layers(self) -> Iterator[Group]:
        """The modules of the numbered layers."""
        return (group for key, group in self.groups.items() if ".*." in f"{key}.")

    @cached_property
    def experts(self) -> tuple[Group, ...]:
        """The modules that hold the weights of experts."""
        return tuple(group for group in self.groups.values() if holds_experts(group.modules[0]))

    def mlps(self) -> Iterator[Group]:
        """What may be an MLP: modules of two or three plain projections, outside of attention."""
        inside = {f"{group.key}." for group in self.attention}
        for group in self.groups.values():
            outside = bool(group.key) and not any(f"{group.key}.".startswith(each) for each in inside)
            if outside and any(projections(module) is not None for module in group.modules):
                yield group

    def mlp(self, group: Group) -> Mlp | None:
        """The parts of an MLP, found out by running a small copy of one of each kind among the layers; None if some
        is none that is known."""
        if group.key not in self._mlps:
            found = [self._probed(each) for each in {kind_of(each): each for each in group.modules}.values()]
            self._mlps[group.key] = found[0] if len(set(found)) == 1 else None
        return self._mlps[group.key]

    def _probed(self, module: torch.nn.Module) -> Mlp | None:
        if projections(module) is None:
            return None
        with torch.device("cpu"):
            layer = mlp_layer("", module)
        if layer is None or layer.binding is None:
            return None
        names = [name.removesuffix(".weight") if name else None for name in layer.binding.tensors]
        if "two_layer" in layer.facts.features:
            return Mlp(str(names[0]), None, str(names[1]), two_layer=True, fused_bias=False)
        fused_bias = names[1] is None and layer.binding.tensors[3] is not None
        return Mlp(str(names[0]), names[1], str(names[2]), two_layer=False, fused_bias=fused_bias)

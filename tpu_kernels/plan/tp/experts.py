"""Experts: three-dimensional weights, cut along the intermediate size of each expert."""

from __future__ import annotations

from typing import Any, Final

from tpu_kernels.plan.tp.rules import Rules
from tpu_kernels.plan.tp.structure import Group
from tpu_kernels.plan.tp.styles import SharedBias, cut

_SUMMED: Final = "moe_tp_experts"


def adapt_experts(rules: Rules, *, add: bool) -> None:
    """Give each chip its part of each expert. Where the intermediate size does not divide there is no way that saves
    anything, which is a problem. `add`: also where the model's plan does not know the experts."""
    for group in rules.structure.experts:
        if not rules.cuts(group.key) and not (add and rules.structure.in_decoder(group.key)):
            continue
        if _is_marked(group):
            _adapt(rules, group, "the model has no plan of its own" if not rules.cuts(group.key) else None)
        for parameter in rules.uneven(group.key):
            size = _intermediate(group) if _is_marked(group) else parameter.shape
            rules.problems.append(f"{group.key}: experts of intermediate size {size} do not divide by {rules.chips}")
            break


def _is_marked(group: Group) -> bool:
    """Whether transformers says on the modules how their weights lie."""
    return all(hasattr(group.modules[0], mark) for mark in ("has_gate", "has_bias", "is_transposed", "is_concatenated"))


def _intermediate(group: Group) -> int:
    module: Any = group.modules[0]
    return int(module.down_proj.shape[1 if module.is_transposed else 2])


def _adapt(rules: Rules, group: Group, why: str | None) -> None:
    module: Any = group.modules[0]
    packed = bool(module.has_gate and module.is_concatenated)
    first = "gate_up_proj" if module.has_gate else "up_proj"
    along = "rowwise" if module.is_transposed else "colwise"
    styles = {
        first: f"packed_{along}" if packed else along,
        "down_proj": "colwise" if module.is_transposed else "rowwise",
    }
    if module.has_bias:
        styles[f"{first}_bias"] = "packed_rowwise" if packed else "rowwise"
    for name, style in styles.items():
        key = group.child(name)
        parameter = rules.structure.by_key[key]
        if rules.cut(parameter) != cut(style, name, parameter.shape, rules.chips):
            rules.set(key, style, why or "so its parts lie in the tensor")
    if module.has_bias:
        rules.set(group.key, str(SharedBias()), "the bias of the down projection is added once, not on every chip")
    elif rules.now.get(group.key) != _SUMMED:
        rules.set(group.key, _SUMMED, why or "the chips' parts are summed")

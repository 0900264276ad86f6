"""The rules of a model while they are adapted: transformers' own, what is changed, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_kernels.plan.tp.parts import Rule
from tpu_kernels.plan.tp.structure import Parameter, Structure
from tpu_kernels.plan.tp.styles import COLWISE, ROWWISE, cut, local_shape

TURNED = {**dict.fromkeys(COLWISE, "rowwise_split_input"), **dict.fromkeys(ROWWISE, "colwise_gather_output")}
"""Styles that cut a projection along its other dimension, and neither need nor leave anything divided around it."""

GATHERING = {
    "colwise": "colwise_gather_output",
    "packed_colwise": "colwise_gather_output",
    "rowwise": "rowwise_split_input",
}
"""With these a module computes everything on each chip, on weights that stay divided."""


class Rules:
    """The plan of a model and the changes to it. A rule is a wildcard path of a module or parameter, and a style.

    notes     what follows from the changes
    problems  what cannot be adapted for this number of chips
    """

    def __init__(self, structure: Structure, chips: int) -> None:
        self.structure = structure
        self.chips = chips
        self.own = structure.own_plan
        self.now: dict[str, str] = dict(self.own)
        self.why: dict[str, str] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []

    def style(self, key: str) -> str | None:
        """The style of a parameter: its own rule, else that of its module."""
        return self.now.get(key) or self.now.get(key.rpartition(".")[0])

    def set(self, key: str, style: str, why: str) -> None:
        """Give a module or parameter another style than it has."""
        if self.now.get(key) != style:
            self.now[key] = style
            self.why[key] = why

    def under(self, key: str) -> Iterator[str]:
        """The rules of a module and of everything in it."""
        return (each for each in tuple(self.now) if each == key or each.startswith(f"{key}."))

    def parameters_under(self, key: str) -> Iterator[Parameter]:
        return (each for each in self.structure.by_key.values() if each.key.startswith(f"{key}."))

    def cuts(self, key: str) -> bool:
        """Whether some rule at or under a module cuts a parameter."""
        return any(self.cut(each) is not None for each in self.parameters_under(key))

    def cut(self, parameter: Parameter) -> tuple[int, int, int] | None:
        """As `styles.cut`, for the style of a parameter."""
        style = self.style(parameter.key)
        return None if style is None else cut(style, parameter.name, parameter.shape, self.chips)

    def local(self, parameter: Parameter) -> tuple[int, ...] | None:
        """The shape on each chip; None where they would be unequal."""
        return local_shape(self.style(parameter.key), parameter.name, parameter.shape, self.chips)

    def uneven(self, key: str | None = None) -> list[Parameter]:
        """The parameters, of all or of one module, that the rules would cut into unequal pieces."""
        found = self.structure.parameters if key is None else self.parameters_under(key)
        return [each for each in found if self.local(each) is None]

    def overrides(self) -> dict[str, str]:
        """What differs from the model's own plan: the `tp_plan` of a DistributedConfig."""
        return {key: style for key, style in self.now.items() if self.own.get(key) != style}

    def described(self) -> tuple[Rule, ...]:
        return tuple(Rule(key, style, self.own.get(key), self.why.get(key, "")) for key, style in self.now.items())


def turn(rules: Rules, keys: list[str], why: str) -> bool:
    """Cut these projections along their other dimension; False, and nothing changed, where that is uneven too."""
    before = dict(rules.now), dict(rules.why)
    for key in keys:
        if rules.now[key] in TURNED:
            rules.set(key, TURNED[rules.now[key]], why)
    if any(rules.uneven(key) for key in keys) or any(rules.now[key] not in COLWISE | ROWWISE for key in keys):
        rules.now, rules.why = before
        return False
    return True


def replicate(rules: Rules, keys: list[str], why: str) -> None:
    """Let every chip hold the whole of what these rules are about."""
    for key in keys:
        if rules.now[key] not in ("replicate", "replicated_with_grad_allreduce"):
            rules.set(key, "replicate", why)

"""Which kernel replaces which layer, and why not: decided here, as data, before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from tpu_kernels.plan.match import LayerFacts, Rejection, rejections
from tpu_kernels.plan.model_view import Layer, attention_layers, resolve_model
from tpu_kernels.plan.table import render_rows
from tpu_kernels.registry import Registry, load_registry
from tpu_kernels.specs import KernelSpec

Policy = Literal["auto", "always"]
POLICIES: tuple[Policy, ...] = ("auto", "always")


@dataclass(frozen=True)
class PlanEntry:
    """One candidate layer: the kernel chosen for it, or why none was.

    `rejected` names every requirement that stood against a kernel, `obstacle` what stands against every kernel;
    `reason` is the sentence for people.
    """

    path: str
    op: str
    facts: LayerFacts
    kernel: KernelSpec | None
    reason: str
    rejected: tuple[Rejection, ...] = ()
    obstacle: str | None = None

    @property
    def swapped(self) -> bool:
        return self.kernel is not None


@dataclass(frozen=True)
class SwapPlan:
    """The plan for one model: an entry for every layer that a kernel could replace. `print(plan)` shows a table."""

    model_class: str
    entries: tuple[PlanEntry, ...]
    generation: str | None = None

    @property
    def swapped(self) -> tuple[PlanEntry, ...]:
        return tuple(entry for entry in self.entries if entry.swapped)

    @property
    def kept(self) -> tuple[PlanEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.swapped)

    def __str__(self) -> str:
        rows = [
            (entry.path, entry.facts.class_name, entry.kernel.name if entry.kernel else "kept", entry.reason)
            for entry in self.entries
        ]
        title = f"{self.model_class}: {len(self.swapped)} of {len(self.entries)} layers get a kernel"
        return render_rows(title, ("layer", "class", "kernel", "why"), rows)


def _selected(path: str, include: Sequence[str] | None, exclude: Sequence[str] | None) -> str | None:
    """None if the layer is selected, else the reason why it is not."""
    if include is not None and not any(fnmatchcase(path, pattern) for pattern in include):
        return f"not in include={list(include)}"
    for pattern in exclude or ():
        if fnmatchcase(path, pattern):
            return f"excluded by {pattern!r}"
    return None


def choose(layer: Layer, specs: Iterable[KernelSpec], generation: str | None) -> PlanEntry:
    """The first spec, in registry order, whose requirements the layer meets."""
    rejected: list[Rejection] = []
    for spec in specs:
        found = rejections(spec, layer.facts, generation)
        if not found:
            return PlanEntry(layer.path, layer.op, layer.facts, spec, f"meets {spec.origin}")
        rejected.extend(found)
    reason = "; ".join(str(rejection) for rejection in rejected) or f"no spec for {layer.op} layers"
    return PlanEntry(layer.path, layer.op, layer.facts, None, reason, tuple(rejected))


def plan_layers(
    layers: Iterable[Layer],
    registry: Registry,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    generation: str | None = None,
) -> tuple[PlanEntry, ...]:
    """A plan entry for every layer, in order."""
    entries = []
    for layer in layers:
        unselected = _selected(layer.path, include, exclude)
        if unselected is not None:
            entries.append(PlanEntry(layer.path, layer.op, layer.facts, None, unselected))
        elif layer.obstacle is not None:
            entries.append(PlanEntry(layer.path, layer.op, layer.facts, None, layer.obstacle, obstacle=layer.obstacle))
        else:
            entries.append(choose(layer, registry.for_op(layer.op), generation))
    return tuple(entries)


def plan_tpu_kernels(
    model_or_config: Any,
    specs: Sequence[str | Path | KernelSpec] | None = None,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    policy: Policy = "auto",
    generation: str | None = None,
) -> SwapPlan:
    """What `enable_tpu_kernels` would do, without doing it.

    model_or_config  a transformers model (or a wrapper of one), a config, a Hub id, a folder, or a config.json; from
                     a config alone the model's structure is built without weights
    specs            kernel specs to add to the bundled ones: files, folders or `KernelSpec`s
    include/exclude  glob patterns over module paths, for example `model.layers.0.*`
    policy           "auto" takes a kernel where it is right and not known to lose, "always" wherever it is right
    generation       TPU generation to plan for, for example `v5e`; None for any

    Raises ValueError for an unknown policy, SpecError for a malformed spec, ModelStructureError where no transformers
    model is found.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    model = resolve_model(model_or_config)
    registry = load_registry(specs)
    entries = plan_layers(attention_layers(model), registry, include=include, exclude=exclude, generation=generation)
    return SwapPlan(type(model).__name__, entries, generation)

"""Which kernel replaces which layer, and why not: decided here, as data, before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from tpu_kernels.plan.layer import Layer
from tpu_kernels.plan.layers import candidate_layers
from tpu_kernels.plan.match import LayerFacts, Rejection, not_preferred, preferred_calls, rejections
from tpu_kernels.plan.model_view import resolve_model
from tpu_kernels.plan.table import render_rows
from tpu_kernels.registry import Registry, load_registry
from tpu_kernels.specs import KernelSpec
from tpu_kernels.specs.vocabulary import POLICIES, Policy


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


def choose(layer: Layer, specs: Iterable[KernelSpec], generation: str | None, policy: Policy = "auto") -> PlanEntry:
    """The first spec, in registry order, whose requirements the layer meets; with policy "auto" the first of those
    that may win some call of it."""
    rejected: list[Rejection] = []
    losing: list[str] = []
    for spec in specs:
        found = rejections(spec, layer.facts, generation)
        against = not_preferred(spec, layer.facts, generation) if policy == "auto" and not found else None
        if not found and against is None:
            where = f", preferred for {preferred_calls(spec)}" if policy == "auto" and spec.prefer else ""
            return PlanEntry(layer.path, layer.op, layer.facts, spec, f"meets {spec.origin}{where}")
        rejected.extend(found)
        losing.extend([against] if against is not None else [])
    if losing:
        return PlanEntry(layer.path, layer.op, layer.facts, None, "; ".join(losing))
    reason = "; ".join(str(rejection) for rejection in rejected) or f"no spec for {layer.op} layers"
    return PlanEntry(layer.path, layer.op, layer.facts, None, reason, tuple(rejected))


def plan_layers(
    layers: Iterable[Layer],
    registry: Registry,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    generation: str | None = None,
    policy: Policy = "auto",
) -> tuple[PlanEntry, ...]:
    """A plan entry for every layer, in order."""
    entries = []
    for layer in layers:
        unselected = _selected(layer.path, include, exclude)
        if unselected is None and layer.rotary is not None:  # its attention module is excluded as a whole
            unselected = _selected(layer.path.rsplit(".", 1)[0], None, exclude)
        if unselected is not None:
            entries.append(PlanEntry(layer.path, layer.op, layer.facts, None, unselected))
        elif layer.obstacle is not None:
            entries.append(PlanEntry(layer.path, layer.op, layer.facts, None, layer.obstacle, obstacle=layer.obstacle))
        else:
            entries.append(choose(layer, registry.for_op(layer.op), generation, policy))
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
    return plan_model(
        resolve_model(model_or_config),
        specs,
        include=include,
        exclude=exclude,
        policy=policy,
        generation=generation,
    )[0]


def plan_model(
    model: PreTrainedModel, specs: Sequence[str | Path | KernelSpec] | None = None, **options: Any
) -> tuple[SwapPlan, tuple[Layer, ...]]:
    """The same for a model, with the layers that the plan's entries are about, in their order."""
    registry = load_registry(specs)
    layers = tuple(candidate_layers(model))
    plan = SwapPlan(type(model).__name__, plan_layers(layers, registry, **options), options.get("generation"))
    return plan, layers

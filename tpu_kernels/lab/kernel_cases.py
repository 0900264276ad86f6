"""Which kernels the lab's commands mean where none is named, and the cases by which a kernel is judged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.catalog import cases_named, cases_of, names_of, refuse_unknown, representatives_of
from tpu_kernels.registry import load_registry
from tpu_kernels.registry.index import BUNDLED
from tpu_kernels.specs import KernelSpec

Amount = Literal["all", "differing", "few"]
"""All cases; those that differ in kind; or at most FEW of these."""

FEW: Final = 3


def bundled_kernels(ops: Collection[str] | None = None) -> list[KernelSpec]:
    """The specs that ship with this package, of `ops` alone if they are given."""
    registry = load_registry()
    return [spec for spec in registry if registry.provider_of(spec.name) == BUNDLED and (ops is None or spec.op in ops)]


def chosen_cases(spec: KernelSpec, names: Sequence[str] = (), amount: Amount = "few") -> list[OpCase]:
    """The cases of those names ("NAME/decode", or "NAME" for all of a model); without names, `amount` of them.

    Raises ValueError for a name that no case of the kernel has, and SpecError for an op without cases.
    """
    if names:
        return cases_named(spec.op, names, spec.entry)
    if amount == "all":
        return list(cases_of(spec.op, spec.entry))
    differing = list(representatives_of(spec.op, spec.entry))
    return differing if amount == "differing" else _few(differing)


def cases_of_each(
    specs: Iterable[KernelSpec], names: Sequence[str] = (), amount: Amount = "few"
) -> list[tuple[KernelSpec, list[OpCase]]]:
    """Each spec with its cases as `chosen_cases` has them; one that has none of the names is left out.

    Raises ValueError for a name that no case of any spec has, and SpecError for an op without cases.
    """
    specs = list(specs)
    refuse_unknown(names, [case for spec in specs for case in cases_of(spec.op, spec.entry)])
    chosen = []
    for spec in specs:
        known = {name for case in cases_of(spec.op, spec.entry) for name in names_of(case)}
        own = [name for name in names if name in known]
        if own or not names:
            chosen.append((spec, chosen_cases(spec, own, amount)))
    return chosen


def _few(cases: Sequence[OpCase]) -> list[OpCase]:
    """At most FEW of them, every phase ("decode", "prefill") among them, in their order."""
    phases = {case.name.split("/")[-1]: case for case in reversed(cases)}
    first = [case for case in cases if case in phases.values()][:FEW]
    more = [case for case in cases if case not in first][: FEW - len(first)]
    return [case for case in cases if case in first or case in more]

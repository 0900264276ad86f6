"""The immutable index of kernel specs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tpu_kernels.errors import DuplicateSpecError, SpecError, explain
from tpu_kernels.registry.sources import (
    FOLDER_VARIABLE,
    SpecSource,
    bundled_specs,
    entry_point_specs,
    environment_specs,
    given_specs,
)
from tpu_kernels.specs import KernelSpec, load_spec
from tpu_kernels.specs.problems import did_you_mean

BUNDLED: Final = "bundled"
GIVEN: Final = "given"
YAML_SUFFIXES: Final = (".yaml", ".yml")


class Registry:
    """Kernel specs by name, in order of preference: the first that fits a layer is the one to take.

    Iterating gives the specs. Raises DuplicateSpecError if two different specs share a name; the same file
    met twice counts once.
    """

    __slots__ = ("_providers", "_specs")

    def __init__(self, specs: Iterable[tuple[str, KernelSpec]] = ()) -> None:
        """`specs`: pairs of a provider, which says who brought the spec, and the spec."""
        self._specs: dict[str, KernelSpec] = {}
        self._providers: dict[str, str] = {}
        for provider, spec in specs:
            known = self._specs.get(spec.name)
            if known is None:
                self._specs[spec.name] = spec
                self._providers[spec.name] = provider
            elif not _same(known, spec):
                raise _duplicate(known, self._providers[spec.name], spec, provider)

    def __iter__(self) -> Iterator[KernelSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __repr__(self) -> str:
        return f"Registry({', '.join(self._specs) or 'empty'})"

    def for_op(self, op: str) -> tuple[KernelSpec, ...]:
        """The specs of one op, in order of preference."""
        return tuple(spec for spec in self if spec.op == op)

    def find(self, name: str) -> KernelSpec | None:
        """The spec of that name, or of the only name that ends in it (the op may be left out), or None."""
        if name in self._specs:
            return self._specs[name]
        ending = [spec for spec in self if spec.name.split("/", 1)[1] == name]
        return ending[0] if len(ending) == 1 else None

    def get(self, name: str) -> KernelSpec:
        """The same. Raises SpecError where there is none, which lists the names there are."""
        spec = self.find(name)
        if spec is None:
            raise SpecError(
                explain(
                    f"there is no kernel spec named `{name}`.",
                    needs=f"one of {', '.join(self._specs)}" if self._specs else "a registry with specs",
                    next_step=did_you_mean(name, self._specs),
                )
            )
        return spec

    def provider_of(self, name: str) -> str:
        """Who brought the spec of that name: `given`, `TPU_KERNELS_SPECS`, an entry point, or `bundled`."""
        return self._providers[self.get(name).name]


def load_registry(specs: SpecSource | Iterable[SpecSource] | None = None) -> Registry:
    """All specs there are, those of the caller first.

    In order of preference: `specs` (KernelSpec objects, YAML files, folders), the folder that
    TPU_KERNELS_SPECS names, entry points of the group `tpu_kernels.specs`, and the specs that ship with this
    package. `specs` are added to the others and replace none of them.

    Raises SpecError for a malformed or missing spec, DuplicateSpecError for two specs of one name.
    """
    return Registry(_all(specs))


def find_spec(name: str) -> KernelSpec | None:
    """What a user calls a spec: a YAML file, or a name as `Registry.find` takes it; None if there is no such name.

    Raises SpecError for a file that is no spec.
    """
    if Path(name).suffix in YAML_SUFFIXES:
        return load_spec(Path(name).expanduser())
    return load_registry().find(name)


def _all(specs: SpecSource | Iterable[SpecSource] | None) -> Iterator[tuple[str, KernelSpec]]:
    for spec in given_specs(specs) if specs is not None else ():
        yield GIVEN, spec
    for spec in environment_specs():
        yield FOLDER_VARIABLE, spec
    for label, spec in entry_point_specs():
        yield f"entry point {label}", spec
    for spec in bundled_specs():
        yield BUNDLED, spec


def _same(one: KernelSpec, other: KernelSpec) -> bool:
    if one is other:
        return True
    if one.file is None or other.file is None or not one.file.samefile(other.file):
        return False
    return one.model_dump() == other.model_dump()


def _duplicate(known: KernelSpec, known_from: str, spec: KernelSpec, provider: str) -> DuplicateSpecError:
    places = (f"{known.cite('name')} ({known_from})", f"{spec.cite('name')} ({provider})")
    message = explain(
        f"two kernel specs are named `{spec.name}`.",
        needs="one spec per name",
        got="\n".join(places),
        next_step="rename one of them.",
    )
    file = str(spec.file) if spec.file else None
    return DuplicateSpecError(message, file=file, line=spec.line_of("name"))

"""The places that specs come from: the caller, TPU_KERNELS_SPECS, entry points, and this package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.registry.bundled import bundled_specs_folder
from tpu_kernels.specs import KernelSpec, load_spec
from tpu_kernels.specs.origin import display_path

SpecSource = str | os.PathLike[str] | KernelSpec
ENTRY_POINT_GROUP = "tpu_kernels.specs"
FOLDER_VARIABLE = "TPU_KERNELS_SPECS"


def given_specs(sources: SpecSource | Iterable[SpecSource]) -> Iterator[KernelSpec]:
    """Every spec of `sources`: KernelSpec objects, YAML files, and folders searched at any depth.

    Raises SpecError for a path that is missing, is no YAML file, or is a folder without specs.
    """
    if isinstance(sources, (str, os.PathLike, KernelSpec)):
        sources = (sources,)
    for source in sources:
        if isinstance(source, KernelSpec):
            yield source
        elif isinstance(source, (str, os.PathLike)):
            yield from specs_at(Path(source).expanduser())
        else:
            raise SpecError(
                explain(
                    "a kernel spec was given as something else than a spec or a path.",
                    needs="a KernelSpec, or the path of a YAML file or of a folder of them",
                    got=f"{source!r} ({type(source).__name__})",
                )
            )


def specs_at(path: Path) -> Iterator[KernelSpec]:
    """The spec in a YAML file, or every spec below a folder in the order of their paths."""
    if path.is_dir():
        files = sorted(file for suffix in ("yaml", "yml") for file in path.rglob(f"*.{suffix}"))
        if not files:
            raise SpecError(
                explain(
                    f"no kernel spec lies in the folder {display_path(path)}.",
                    needs="at least one .yaml file there, at any depth",
                ),
                file=str(path),
            )
        for file in files:
            yield load_spec(file)
        return
    if not path.exists():
        raise SpecError(
            explain(
                f"there is no kernel spec at {display_path(path)}.",
                needs="a YAML file, or a folder of them",
                got="no such file or folder",
                next_step="check the path; a relative one counts from the working directory.",
            ),
            file=str(path),
        )
    yield load_spec(path)


def environment_specs() -> Iterator[KernelSpec]:
    """The specs in the folder that TPU_KERNELS_SPECS names; none if it is unset or empty."""
    value = os.environ.get(FOLDER_VARIABLE, "")
    if not value:
        return
    path = Path(value).expanduser()
    if not path.is_dir():
        raise SpecError(
            explain(
                f"{FOLDER_VARIABLE} does not name a folder.",
                needs="the path of a folder of kernel specs",
                got=value,
                next_step=f"correct {FOLDER_VARIABLE} or unset it.",
            ),
            file=value,
        )
    yield from specs_at(path)


def entry_point_specs() -> Iterator[tuple[str, KernelSpec]]:
    """(name of the entry point, spec) for every installed package that offers specs.

    An entry point of the group `tpu_kernels.specs` loads to a path, a KernelSpec, or a list of them.
    """
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        label = _describe(point)
        try:
            loaded = point.load()
        except Exception as error:
            raise SpecError(
                explain(
                    f"the entry point {label} cannot be loaded.",
                    got=f"{type(error).__name__}: {error}",
                    next_step="repair or uninstall the package that offers it.",
                )
            ) from error
        if not isinstance(loaded, (str, os.PathLike, KernelSpec, list, tuple)):
            raise SpecError(
                explain(
                    f"the entry point {label} offers no specs.",
                    needs="a path, a KernelSpec, or a list of them",
                    got=f"{loaded!r} ({type(loaded).__name__})",
                    next_step="repair or uninstall the package that offers it.",
                )
            )
        try:
            for spec in given_specs(loaded):
                yield label, spec
        except SpecError as error:
            message = f"{error}\nThis came through the entry point {label}."
            raise SpecError(message, file=error.file, line=error.line) from error


def bundled_specs() -> Iterator[KernelSpec]:
    """The specs that ship with this package."""
    yield from specs_at(bundled_specs_folder())


def _describe(point: EntryPoint) -> str:
    package = f" of {point.dist.name}" if point.dist else ""
    return f"{point.name} = {point.value}{package}"

"""Read kernel specs from YAML files."""

from __future__ import annotations

import os
from pathlib import Path

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.specs.origin import display_path
from tpu_kernels.specs.parts import PathSource
from tpu_kernels.specs.schema import KernelSpec
from tpu_kernels.specs.yaml_text import read_mapping


def load_spec(path: str | os.PathLike[str]) -> KernelSpec:
    """The kernel spec in one YAML file.

    Raises SpecError, with file and line, for everything that is wrong with it.
    """
    file = Path(path).expanduser()
    label = display_path(file)
    try:
        raw = file.read_bytes()
    except OSError as error:
        what = f"{label}: the spec file cannot be read."
        got = error.strerror or str(error)
        raise SpecError(explain(what, got=got), file=str(file.absolute()), line=1) from error
    return parse_spec(raw, file=file, label=label)


def parse_spec(raw: bytes, *, file: Path, label: str | None = None) -> KernelSpec:
    """The kernel spec in the bytes of a YAML file that lies, or would lie, at `file`. Raises SpecError."""
    data, origin = read_mapping(raw, file, label or display_path(file))
    if "schema_version" not in data:
        what = f"{origin.cite(())}: the key `schema_version` is missing."
        message = explain(what, next_step="add `schema_version: 1`.")
        raise SpecError(message, file=str(origin.file), line=origin.line_of(()))
    spec = KernelSpec.from_mapping(data, origin)
    if isinstance(spec.source, PathSource):
        _check_folder(spec, spec.source.path)
    return spec


def _check_folder(spec: KernelSpec, path: str) -> None:
    key = "source.path"
    home = spec.file.parent if spec.file else Path.cwd()
    folder = Path(os.path.normpath(home / path))
    if path.startswith("~") or Path(path).is_absolute() or not folder.is_relative_to(home):
        raise _refuse(
            spec,
            key,
            "the path leaves the folder of the spec.",
            needs=f"a folder at or below {display_path(home)}",
            got=path,
            next_step="move the spec beside the kernel, or build it in Python, where any path may stand.",
        )
    if not _is_folder(folder):
        raise _refuse(spec, key, "there is no such kernel folder.", got=str(folder))


def _is_folder(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except (OSError, ValueError):  # a name that the file system cannot hold
        return False


def _refuse(spec: KernelSpec, key: str, what: str, **more: str) -> SpecError:
    message = explain(f"{spec.cite(key)}: {what}", **more)
    return SpecError(message, file=str(spec.file), line=spec.line_of(key))

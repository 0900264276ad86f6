"""What `tpu-kernels compile` is given: a kernel by its spec, its repository or its JAX file; or a model."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tpu_kernels.errors import KernelLoadError, SpecError, explain
from tpu_kernels.ops.catalog import OPS, cases_of
from tpu_kernels.registry import find_spec
from tpu_kernels.registry.index import YAML_SUFFIXES
from tpu_kernels.specs import KernelSpec

_CONFIG: Final = "config.json"


@dataclass(frozen=True)
class KernelSubject:
    """A kernel's JAX file, and the spec that says what it covers, where there is one."""

    name: str
    source: Path
    op: str
    function: str | None = None
    """The one whose cases are meant, as `catalog.cases_of` has it; None for all of the op."""
    spec: KernelSpec | None = None


@dataclass(frozen=True)
class ModelSubject:
    """A model by its config: Hub id, folder, or path of a config.json."""

    name: str


Subject = KernelSubject | ModelSubject


def subject_of(name: str) -> Subject:
    """What `name` means: a spec (its name, the part behind the op, or a YAML file), a kernel repository, a JAX file.

    Anything else is a model. Raises SpecError and KernelLoadError for a spec or a kernel that cannot be compiled.
    """
    path = Path(name).expanduser()
    if path.suffix == ".py":
        return _kernel(path.stem, [path], name)
    if path.is_dir() and not (path / _CONFIG).is_file():
        return _kernel(path.resolve().name, _files_in(path), name)
    if path.suffix in YAML_SUFFIXES or not path.exists():
        spec = find_spec(name)
        if spec is not None:
            return _of_spec(spec)
    return ModelSubject(name)


def _of_spec(spec: KernelSpec) -> KernelSubject:
    cases_of(spec.op, spec.entry)  # or an error that says what is missing
    if spec.kernel_folder is None:
        raise KernelLoadError(
            explain(
                f"The kernel of `{spec.name}` lies on the Hub.",
                needs="a kernel repository in a folder",
                got=f"{spec.source}   ({spec.cite('source')})",
                next_step="download the repository and give its folder to `tpu-kernels compile`.",
            )
        )
    kernel = _kernel(spec.name, _files_in(spec.kernel_folder), str(spec.kernel_folder), [spec.op])
    return replace(kernel, function=spec.entry, spec=spec)


def _files_in(folder: Path) -> list[Path]:
    """The Python files of a kernel repository: its sources, then a build of them; `kernel.py` before its neighbours."""
    found = [*folder.glob("torch-ext/*/*.py"), *folder.glob("build/*/*.py"), *folder.glob("*.py")]
    order = ("torch-ext", "build")
    return sorted(
        found,
        key=lambda file: (
            order.index(part) if (part := file.relative_to(folder).parts[0]) in order else len(order),
            file.parent,
            file.name != "kernel.py",
            file.name,
        ),
    )


def _kernel(name: str, files: list[Path], given: str, ops: Sequence[str] = OPS) -> KernelSubject:
    """The first of `files` that defines a function for which one of `ops` has cases."""
    for file in files:
        if not file.is_file():
            raise KernelLoadError(explain("There is no such kernel.", needs="a Python file", got=str(file)))
        functions = _functions(file)
        for op in ops:
            with suppress(SpecError):  # an op without cases
                own = {case.function for case in cases_of(op)} & functions
                if own:
                    return KernelSubject(name, file, op, own.pop() if len(own) == 1 else None)
    raise KernelLoadError(
        explain(
            f"There is nothing to compile in {given}.",
            needs=f"a kernel repository or a JAX file with a function of an op ({', '.join(OPS)}), for example `attend`"
            f" (query, key, value, bounds, sinks), or a model's folder with a {_CONFIG}",
            got=", ".join(file.name for file in files) or "no Python file",
            next_step="give the JAX file itself, or see docs/compile.md for the contract.",
        )
    )


def _functions(file: Path) -> set[str]:
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError as error:
        raise KernelLoadError(explain(f"{file} is not Python.", got=f"line {error.lineno}: {error.msg}")) from error
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

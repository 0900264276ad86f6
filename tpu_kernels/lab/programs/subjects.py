"""What `tpu-kernels compile` is given: a kernel by its spec, its repository or its JAX file; or a model."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpu_kernels.errors import KernelLoadError, SpecError, explain
from tpu_kernels.registry import find_spec
from tpu_kernels.registry.index import YAML_SUFFIXES
from tpu_kernels.specs import KernelSpec

ENTRY: Final = "attend"
"""The function of a kernel's JAX file that is compiled, with the arguments of the op's contract."""

_CONFIG: Final = "config.json"


@dataclass(frozen=True)
class KernelSubject:
    """A kernel's JAX file, and the spec that says what it covers, where there is one."""

    name: str
    source: Path
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
        return KernelSubject(path.stem, _with_entry([path], name))
    if path.is_dir() and not (path / _CONFIG).is_file():
        return KernelSubject(path.resolve().name, _source_in(path))
    if path.suffix in YAML_SUFFIXES or not path.exists():
        spec = find_spec(name)
        if spec is not None:
            return _of_spec(spec)
    return ModelSubject(name)


def _of_spec(spec: KernelSpec) -> KernelSubject:
    if spec.op != "attention":
        raise SpecError(
            explain(
                f"The kernel of `{spec.name}` has no cases to be compiled for.",
                needs="a spec of an op that has named cases: attention",
                got=f"op: {spec.op}   ({spec.cite('op')})",
            )
        )
    if spec.kernel_folder is None:
        raise KernelLoadError(
            explain(
                f"The kernel of `{spec.name}` lies on the Hub.",
                needs="a kernel repository in a folder",
                got=f"{spec.source}   ({spec.cite('source')})",
                next_step="download the repository and give its folder to `tpu-kernels compile`.",
            )
        )
    return KernelSubject(spec.name, _source_in(spec.kernel_folder), spec)


def _source_in(folder: Path) -> Path:
    """The JAX file of a kernel repository: in its sources, else in a build of them."""
    files = [
        *sorted(folder.glob("torch-ext/*/*.py")),
        *sorted(folder.glob("build/*/*.py")),
        *sorted(folder.glob("*.py")),
    ]
    return _with_entry(files, str(folder))


def _with_entry(files: list[Path], name: str) -> Path:
    for file in files:
        if not file.is_file():
            raise KernelLoadError(explain("There is no such kernel.", needs="a Python file", got=str(file)))
        if ENTRY in _functions(file):
            return file
    raise KernelLoadError(
        explain(
            f"There is nothing to compile in {name}.",
            needs=f"a kernel repository or a JAX file with a function `{ENTRY}` (query, key, value, bounds, sinks),"
            f" or a model's folder with a {_CONFIG}",
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

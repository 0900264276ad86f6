"""Imports go strictly down the ranks, function bodies included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpu_kernels

PACKAGE = Path(tpu_kernels.__file__).parent

RANKS = {
    "_version": -1,
    "errors": -1,
    "_logging": 0,
    "chips": 0,
    "emulator": 1,
    "ops": 1,
    "specs": 2,
    "registry": 3,
    "plan": 4,
    "runtime": 5,
    "apply": 6,
    "lab": 7,
    "harness": 8,
    "launch": 8,
    "demo": 8,
    "cli": 9,
}
# Hub kernels are data to this package: it neither imports them nor is imported by them.
DATA = {"hub_kernels", "assets"}
# The emulator must run before anything else is loaded, so of ours it knows the errors alone.
EMULATOR_KNOWS = {"errors", "emulator"}


def unit_of(module: str) -> str | None:
    """`specs` for `tpu_kernels.specs.load`; None for the package itself and for foreign modules."""
    parts = module.split(".")
    return parts[1] if parts[0] == "tpu_kernels" and len(parts) > 1 else None


def imports(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """(line, unit) of each import of ours, wherever it stands in the file."""
    package = module.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [origin] if origin != "tpu_kernels" else [home_of(alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        for unit in filter(None, map(unit_of, names)):
            yield node.lineno, unit


def home_of(name: str) -> str:
    """The module that `from tpu_kernels import NAME` loads."""
    if name in tpu_kernels._LAZY:
        return tpu_kernels._LAZY[name]
    return f"tpu_kernels.{name}" if name in RANKS else "tpu_kernels.errors"


def source_files() -> list[Path]:
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).parts[0] not in DATA]


def climbs(file: Path) -> list[str]:
    relative = file.relative_to(PACKAGE)
    own = relative.parts[0].removesuffix(".py")
    module = ".".join(["tpu_kernels", *relative.with_suffix("").parts])
    found = []
    for line, unit in imports(ast.parse(file.read_text()), module):
        allowed = unit == own or RANKS[unit] < RANKS[own]
        if own == "emulator":
            allowed = unit in EMULATOR_KNOWS
        if not allowed:
            found.append(f"{relative}:{line} imports {unit}")
    return found


def test_every_part_of_the_package_has_a_rank() -> None:
    parts = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in source_files()}
    assert parts - set(RANKS) == {"__init__"}


@pytest.mark.parametrize("file", source_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_strictly_down(file: Path) -> None:
    if file == PACKAGE / "__init__.py":
        return
    assert climbs(file) == []


@pytest.mark.parametrize(
    ("code", "unit"),
    [
        ("def f():\n    from tpu_kernels.cli.main import main", "cli"),
        ("import tpu_kernels.apply.enable", "apply"),
        ("from ..apply import enable", "apply"),
        ("from tpu_kernels import enable_tpu_kernels", "apply"),
        ("from tpu_kernels import plan", "plan"),
        ("import importlib\nimportlib.import_module('tpu_kernels.lab.aot')", "lab"),
    ],
)
def test_every_way_to_import_is_seen(code: str, unit: str) -> None:
    assert [found for _, found in imports(ast.parse(code), "tpu_kernels.specs.load")] == [unit]

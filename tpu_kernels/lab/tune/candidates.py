"""What the search tries for the kernels of each op: keyword arguments of their JAX functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tpu_kernels.lab.cost.subject import kernel_source
from tpu_kernels.ops.catalog import cases_of
from tpu_kernels.specs import KernelSpec

Tuning = Mapping[str, int]

OWN_SIZES: Final[Tuning] = {}
"""The candidate by which the kernel picks its sizes itself."""

CANDIDATES: Final[Mapping[str, tuple[Tuning, ...]]] = {
    "attention": tuple({"block_k": size} for size in (1024, 512, 256, 128)),
}
"""By op. A kernel is tried with those whose keywords it knows, and with its own sizes."""


def spec_candidates(spec: KernelSpec) -> tuple[Tuning, ...]:
    """The kernel's own sizes, and those candidates of the op whose keywords its JAX functions take.

    Raises KernelLoadError where the kernel's source is not here, SpecError for an op without cases.
    """
    source = kernel_source(spec)
    functions = {case.function for case in cases_of(spec.op, spec.function)}
    return (OWN_SIZES, *accepted(CANDIDATES.get(spec.op, ()), source, functions))


def accepted(candidates: Iterable[Tuning], source: Path, functions: Iterable[str]) -> tuple[Tuning, ...]:
    """Those of `candidates` whose keywords all `functions` of the file `source` take."""
    wanted = set(functions)
    keywords = [
        {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    return tuple(candidate for candidate in candidates if all(set(candidate) <= known for known in keywords))

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

_MIB: Final = 2**20


def _each(name: str, *values: int) -> tuple[Tuning, ...]:
    return tuple({name: value} for value in values)


CANDIDATES: Final[Mapping[str, tuple[Tuning, ...]]] = {
    "attention": _each("block_k", 1024, 512, 256, 128),
    "mlp": (*_each("block_i", 1024, 512, 256, 128), *_each("block_rows", 256, 128)),
    "experts": (*_each("block_bytes", 6 * _MIB, 4 * _MIB, 2 * _MIB, _MIB), *_each("num_buffers", 4, 2)),
    "norm": _each("block_rows", 1024, 512, 256, 128, 64, 32),
    "rotary": _each("block_rows", 1024, 512, 256, 128, 64, 32),
}
"""By op. A kernel is tried with those whose keywords it knows, and with its own sizes."""


def spec_candidates(spec: KernelSpec) -> tuple[Tuning, ...]:
    """The kernel's own sizes, and those candidates of the op whose keywords its JAX functions take.

    Raises KernelLoadError where the kernel's source is not here, SpecError for an op without cases.
    """
    source = kernel_source(spec)
    functions = {case.function for case in cases_of(spec.op, spec.entry)}
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

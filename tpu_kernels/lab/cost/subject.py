"""What is costed: one call of an op on given sizes, by a kernel and by plain torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_kernels.errors import KernelLoadError, explain
from tpu_kernels.lab.aot import AotJob, op_jobs
from tpu_kernels.lab.programs import FunctionCase, baseline_cases, reference_cases
from tpu_kernels.ops.attention.cases import AttentionCase
from tpu_kernels.ops.case import OpCase
from tpu_kernels.specs import KernelSpec


@dataclass(frozen=True)
class Subject:
    """One call of an op."""

    name: str
    """Of the case."""
    dtype: str
    sizes: Mapping[str, int]
    """Of the call, for people and for JSON: tokens, hidden, …"""
    job: AotJob = field(repr=False)
    """The kernel on these sizes."""
    values: Mapping[int, Any] = field(repr=False)
    """Contents of arguments that steer the kernel, by position."""
    reference: FunctionCase = field(repr=False)
    """The op in plain torch on these sizes."""
    needed_bytes: int
    """What any implementation must move from and to HBM."""
    needed_flops: int
    """What any implementation must compute in matrix products."""
    baselines: Mapping[str, FunctionCase] = field(default_factory=dict, repr=False)
    """Other torch functions for the same call, by label."""


def op_subject(case: OpCase, kernel: Path, dtype: str, **tuning: Any) -> Subject:
    """The call `case` by its function in the JAX file `kernel`, with `tuning` as further keywords."""
    (job,) = op_jobs([case], [dtype], kernel=kernel, **tuning)
    (reference,) = reference_cases([case], [dtype])
    return Subject(
        name=case.name,
        dtype=dtype,
        sizes=dict(case.sizes),
        job=job,
        values=dict(case.steering()),
        reference=reference,
        needed_bytes=case.needed_bytes(dtype),
        needed_flops=case.needed_flops(),
        baselines=baseline_cases(case, dtype),
    )


def attention_subject(case: AttentionCase, kernel: Path, dtype: str, length: int, **tuning: Any) -> Subject:
    """The same for a call of attention in which `length` positions of the cache are valid.

    ValueError if the cache is shorter than that.
    """
    return op_subject(case.resized(length=length), kernel, dtype, **tuning)


def kernel_source(spec: KernelSpec) -> Path:
    """The JAX file of a spec's kernel, which holds the function that is compiled. KernelLoadError if there is none."""
    folder = spec.kernel_folder
    found = (
        []
        if folder is None
        else sorted(folder.glob("torch-ext/*/kernel.py")) + sorted(folder.glob("build/*/kernel.py"))
    )
    if not found:
        raise KernelLoadError(
            explain(
                f"The kernel of `{spec.name}` cannot be compiled by itself.",
                needs="a bundled or local kernel repository with a file torch-ext/PACKAGE/kernel.py",
                got=f"{spec.source}" if folder is None else f"no such file in {folder}",
            )
        )
    return found[0]


def flops_seconds(flops: float, peak: float, dtype: str) -> float:
    """At the peak of the matrix unit; float32 takes six passes of bfloat16 at full precision."""
    return math.ceil(flops) / peak * (6 if dtype == "float32" else 1)

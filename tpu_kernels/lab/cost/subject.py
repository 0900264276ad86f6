"""What is costed: one call of an op on given sizes, by a kernel and by plain torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tpu_kernels.errors import KernelLoadError, explain
from tpu_kernels.lab.aot import AotJob, attention_jobs
from tpu_kernels.lab.programs import FunctionCase, reference_cases
from tpu_kernels.ops.attention.cases import AttentionCase
from tpu_kernels.specs import KernelSpec

_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Subject:
    """One call of an op."""

    name: str
    """Of the case."""
    dtype: str
    sizes: Mapping[str, int]
    """Of the call, for people and for JSON: batch, q_heads, kv_heads, head_dim, tokens, max_len, length."""
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


def attention_subject(case: AttentionCase, kernel: Path, dtype: str, length: int, **tuning: Any) -> Subject:
    """A call of attention by the function `attend` of the JAX file `kernel`.

    `length` is how many positions of the cache are valid: all of them are written, and the last query is the last of
    them. A sliding window leaves the older ones out. ValueError if the cache is shorter than that.
    """
    shape = case.shape
    if not shape.queries <= length <= shape.length:
        raise ValueError(
            explain(
                "This length does not fit the call.",
                needs=f"{shape.queries} (the new tokens) to {shape.length} (the cache)",
                got=str(length),
            )
        )
    intervals = attention_bounds(case, length)
    seen = range(intervals[0][0], intervals[-1][1])
    pairs = sum(end - start for start, end in intervals)
    widths = shape.key_dim + shape.value_dim
    elements = (shape.kv_heads * len(seen) * widths + shape.query_heads * shape.queries * widths) * shape.batch
    (job,) = attention_jobs([case], [dtype], kernel=kernel, **tuning)
    (reference,) = reference_cases([case], [dtype])
    return Subject(
        name=case.name,
        dtype=dtype,
        sizes={
            "batch": shape.batch,
            "q_heads": shape.query_heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.key_dim,
            "tokens": shape.queries,
            "max_len": shape.length,
            "length": length,
        },
        job=job,
        values={3: [[intervals]] * shape.batch},
        reference=reference,
        needed_bytes=elements * _ITEM_BYTES[dtype],
        needed_flops=2 * shape.batch * shape.query_heads * pairs * widths,
    )


def attention_bounds(case: AttentionCase, length: int) -> list[list[int]]:
    """First valid key and one past the last, of each query."""
    ends = range(length - case.shape.queries + 1, length + 1)
    return [[0 if case.window is None else max(0, end - case.window), end] for end in ends]


def resized(case: AttentionCase, batch: int | None = None, max_len: int | None = None) -> AttentionCase:
    """The case with another batch or cache length, where one is given."""
    shape = replace(case.shape, batch=batch or case.shape.batch, length=max_len or case.shape.length)
    return replace(case, shape=shape)


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

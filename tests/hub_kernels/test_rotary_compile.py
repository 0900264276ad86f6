"""libtpu compiles the rotary kernel for each generation, in a process of its own."""

from __future__ import annotations

import pytest

from tests.hub_kernels.test_rotary_numerics import KERNEL
from tpu_kernels.lab.aot import AotJob, compile_jobs
from tpu_kernels.ops.rotary.cases import CASES, REPRESENTATIVES, SMALL_CASES, case


@pytest.mark.parametrize("generation", ["v5e", "v6e", "tpu7x"])
def test_libtpu_compiles_it(generation: str) -> None:
    odd = [one for one in SMALL_CASES if one.name.split("/")[0] in REPRESENTATIVES]
    full = [one for one in CASES if one.name.split("/")[0] in REPRESENTATIVES]
    wide = [case("gemma-2-9b/prefill"), case("phi-3-mini/prefill")]
    jobs = [
        AotJob(f"{one.name} {dtype}", KERNEL, one.function, one.arguments(dtype), dict(one.keywords))
        for dtype, cases in (("bfloat16", (*full, *odd, *wide)), ("float32", odd[:6]))
        for one in cases
    ]
    results = compile_jobs(jobs, generation)
    assert [f"{result.job.name}: {result.error}" for result in results if not result.ok] == []

"""libtpu compiles the norm kernel for each generation, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hub_kernels.test_norm_numerics import KERNEL
from tpu_kernels.lab.aot import AotJob, compile_jobs
from tpu_kernels.ops.norm.cases import CASES, REPRESENTATIVES, SMALL_CASES, case

ODD = replace(case("llama-3.1-8b/prefill"), name="four rows of 1001 tokens", batch=4, tokens=1001)


@pytest.mark.parametrize("generation", ["v5e", "v6e", "tpu7x"])
def test_libtpu_compiles_it(generation: str) -> None:
    odd = [one for one in SMALL_CASES if one.name.split("/")[0] in REPRESENTATIVES]
    full = [one for one in CASES if one.name.split("/")[0] in REPRESENTATIVES]
    jobs = [
        AotJob(f"{one.name} {dtype}", KERNEL, one.function, one.arguments(dtype), dict(one.keywords))
        for dtype, cases in (("bfloat16", (*full, *odd)), ("float32", (full[0], full[-1], ODD)))
        for one in cases
    ]
    results = compile_jobs(jobs, generation)
    assert [f"{result.job.name}: {result.error}" for result in results if not result.ok] == []

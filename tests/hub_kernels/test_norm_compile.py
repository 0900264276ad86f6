"""libtpu compiles the norm kernel for each generation, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hub_kernels.test_norm_numerics import KERNEL
from tests.support.today import part_of_today
from tpu_kernels.lab.aot import compile_jobs, op_jobs
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.norm.cases import CASES, REPRESENTATIVES, SMALL_CASES, case

ODD = replace(case("llama-3.1-8b/prefill"), name="four rows of 1001 tokens", batch=4, tokens=1001)


@pytest.mark.parametrize("turn", range(len(GENERATIONS)), ids=GENERATIONS)
def test_libtpu_compiles_it(turn: int) -> None:
    """Full-size cases of every kind; of odd sizes and of float32 each generation has a third, another every day."""
    odd = [one for one in SMALL_CASES if one.name.split("/")[0] in REPRESENTATIVES]
    full = [one for one in CASES if one.name.split("/")[0] in REPRESENTATIVES]
    wide = part_of_today((full[0], full[-1], ODD), 3, turn)
    jobs = op_jobs([*full, *part_of_today(odd, 3, turn)], ["bfloat16"], kernel=KERNEL)
    results = compile_jobs(jobs + op_jobs(wide, ["float32"], kernel=KERNEL), GENERATIONS[turn])
    assert [f"{result.job.name}: {result.error}" for result in results if not result.ok] == []

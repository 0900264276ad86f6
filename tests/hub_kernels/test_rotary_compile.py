"""libtpu compiles the rotary kernel for each generation, in a process of its own."""

from __future__ import annotations

import pytest

from tests.hub_kernels.test_rotary_numerics import KERNEL
from tests.support.today import part_of_today
from tpu_kernels.lab.aot import compile_jobs, op_jobs
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.rotary.cases import CASES, REPRESENTATIVES, SMALL_CASES, case

DECODES = ("llama-3.2-1b/decode", "glm-4-9b/decode")


@pytest.mark.parametrize("turn", range(len(GENERATIONS)), ids=GENERATIONS)
def test_libtpu_compiles_it(turn: int) -> None:
    """A prefill of every kind, and decode steps of each layout; of the rest each generation has a third, another
    every day."""
    odd = [one for one in SMALL_CASES if one.name.split("/")[0] in REPRESENTATIVES]
    full = [one for one in CASES if one.name.split("/")[0] in REPRESENTATIVES]
    always = [one for one in full if one.name.endswith("/prefill") or one.name in DECODES]
    rest = [*(one for one in full if one not in always), *odd, case("gemma-2-9b/prefill"), case("phi-3-mini/prefill")]
    jobs = op_jobs([*always, *part_of_today(rest, 3, turn)], ["bfloat16"], kernel=KERNEL)
    jobs += op_jobs(part_of_today(odd[:6], 3, turn), ["float32"], kernel=KERNEL)
    results = compile_jobs(jobs, GENERATIONS[turn])
    assert [f"{result.job.name}: {result.error}" for result in results if not result.ok] == []

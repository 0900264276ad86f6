"""libtpu takes the kernel, and moves no weight before it: sizes of real models, all generations."""

from __future__ import annotations

import pytest

from tests.hub_kernels.test_grouped_experts_few import KERNEL
from tests.support.today import part_of_today
from tpu_kernels.lab.aot import compile_jobs, op_jobs
from tpu_kernels.lab.cost.compare import compared
from tpu_kernels.lab.cost.subject import op_subject
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.experts.cases import REPRESENTATIVES, case

DECODES = [case(f"{name}/decode") for name in REPRESENTATIVES]
PREFILL = case("qwen3-30b-a3b/prefill")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_it_compiles_and_no_weight_is_copied(generation: str) -> None:
    jobs = op_jobs(DECODES, ["bfloat16"], kernel=KERNEL) + op_jobs(DECODES[-1:], ["float32"], kernel=KERNEL)
    results = compile_jobs([*jobs, *op_jobs([PREFILL], ["bfloat16"], kernel=KERNEL)], generation)
    assert {result.job.name: result.error for result in results if not result.ok} == {}
    *decodes, prefill = results
    for result in decodes:
        assert result.moved_bytes < 2**20, f"{result.job.name} moves {result.moved_bytes} bytes around the kernel"
    shape = PREFILL.shape
    assert prefill.moved_bytes < 8 * shape.tokens * shape.top_k * shape.hidden * 2, "more than rows is copied"


@pytest.mark.parametrize("turn", range(len(GENERATIONS)), ids=GENERATIONS)
def test_a_decode_step_reads_the_used_experts_once_and_hardly_waits(turn: int) -> None:
    """Each generation has one of two models, the other one tomorrow."""
    (name,) = part_of_today(("qwen3-30b-a3b", "gpt-oss-20b"), 2, turn)
    one = case(f"{name}/decode").resized(tokens=8)
    (result,) = compared([op_subject(one, KERNEL, "bfloat16")], GENERATIONS[turn])
    cost = result.kernel
    assert cost is not None, result.error
    assert cost.complete and cost.unknown_branches == 0
    assert 1.0 <= cost.read_bytes / one.weight_bytes("bfloat16") < 1.02
    assert cost.share_of_limit > 0.9

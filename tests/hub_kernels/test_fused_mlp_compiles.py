"""libtpu takes the kernel for each generation, and XLA copies no weight on its way to it."""

from __future__ import annotations

import math

import pytest

from tests.hub_kernels.fused_mlp import SOURCE
from tpu_kernels.lab.aot import AotJob, compile_jobs, op_jobs
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.mlp.cases import CASES, REPRESENTATIVES
from tpu_kernels.ops.mlp.contract import MlpShape

BYTES = {"bfloat16": 2, "float32": 4}
PREFILLS = ("qwen3-0.6b/prefill", "gpt2-xl/prefill")
FLOAT32 = ("qwen3-0.6b/decode-8", "gpt2-xl/decode-8")


def rows_and_biases(job: AotJob) -> int:
    """Bytes of everything but the weights."""
    x, *others = [argument for argument in job.arguments if argument is not None]
    small = [math.prod(shape) for shape, _ in others if len(shape) == 1]
    return BYTES[x[1]] * (2 * math.prod(x[0]) + 2 * sum(small)) + 2**14


def smallest_weight(job: AotJob) -> int:
    return min(math.prod(one[0]) * BYTES[one[1]] for one in job.arguments[1:] if one is not None and len(one[0]) == 2)


def odd_jobs() -> list[AotJob]:
    """Widths and rows that fit no tile, in one block and in several."""
    jobs = []
    for rows, hidden, inner in ((1, 16, 16), (3, 40, 37), (21, 130, 300), (700, 72, 1000)):
        shape = MlpShape((rows,), hidden, inner, hidden)
        fused, first, down = (
            (wanted, "bfloat16") for wanted in (shape.first_shape(fused=True), shape.first_shape(), shape.down_shape())
        )
        x, named = ((rows, hidden), "bfloat16"), f"{rows} rows, {hidden} to {inner}"
        options = {"activation": "gelu"}
        jobs.append(AotJob(f"gated, {named}", SOURCE, "gated_mlp", (x, first, first, down), options))
        jobs.append(AotJob(f"fused, {named}", SOURCE, "gated_mlp", (x, fused, None, down), options))
        turned = ((hidden, inner), "bfloat16"), ((inner, hidden), "bfloat16")
        jobs.append(AotJob(f"transposed, {named}", SOURCE, "mlp", (x, *turned), {**options, "transposed": True}))
    return jobs


@pytest.mark.parametrize("generation", GENERATIONS)
def test_cases_of_each_kind_compile_and_copy_no_weight(generation: str) -> None:
    decodes = [f"{model}/decode" for model in REPRESENTATIVES]
    cases = [case for case in CASES if case.name in (*decodes, *PREFILLS)]
    wide = [case for case in CASES if case.name in FLOAT32]
    jobs = op_jobs(cases, ["bfloat16"], kernel=SOURCE) + op_jobs(wide, ["float32"], kernel=SOURCE)
    results = compile_jobs(jobs, generation)
    assert {result.job.name: result.error for result in results if not result.ok} == {}
    assert {one.job.name: one.moved_bytes for one in results if one.moved_bytes > rows_and_biases(one.job)} == {}
    assert all(rows_and_biases(job) < smallest_weight(job) for job in jobs)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_odd_sizes_compile(generation: str) -> None:
    results = compile_jobs(odd_jobs(), generation)
    assert {result.job.name: result.error for result in results if not result.ok} == {}

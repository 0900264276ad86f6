"""libtpu takes the kernel for each generation, and XLA copies no weight on its way to it."""

from __future__ import annotations

import math

import pytest

from tests.hub_kernels.fused_mlp import SOURCE
from tests.support.today import part_of_today
from tpu_kernels.lab.aot import AotJob, compile_jobs, op_jobs
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.mlp.cases import REPRESENTATIVES, case
from tpu_kernels.ops.mlp.contract import MlpShape

BYTES = {"bfloat16": 2, "float32": 4}
DECODES = [case(f"{model}/decode") for model in REPRESENTATIVES]
PREFILLS = [case("qwen3-0.6b/prefill"), case("gpt2-xl/prefill")]
FLOAT32 = [case("qwen3-0.6b/decode-8"), case("gpt2-xl/decode-8")]


def rows_and_biases(job: AotJob) -> int:
    """Bytes of everything but the weights."""
    x, *others = [argument for argument in job.arguments if argument is not None]
    small = [math.prod(shape) for shape, _ in others if len(shape) == 1]
    return BYTES[x[1]] * (2 * math.prod(x[0]) + 2 * sum(small)) + 2**14


def smallest_weight(job: AotJob) -> int:
    return min(math.prod(one[0]) * BYTES[one[1]] for one in job.arguments[1:] if one is not None and len(one[0]) == 2)


def odd_jobs() -> list[list[AotJob]]:
    """Widths and rows that fit no tile, in one block and in several: a list of every kind of layer for each size."""
    sizes = []
    for rows, hidden, inner in ((1, 16, 16), (3, 40, 37), (21, 130, 300), (700, 72, 1000)):
        shape = MlpShape((rows,), hidden, inner, hidden)
        fused, first, down = (
            (wanted, "bfloat16") for wanted in (shape.first_shape(fused=True), shape.first_shape(), shape.down_shape())
        )
        x, named = ((rows, hidden), "bfloat16"), f"{rows} rows, {hidden} to {inner}"
        options = {"activation": "gelu"}
        turned = ((hidden, inner), "bfloat16"), ((inner, hidden), "bfloat16")
        sizes.append(
            [
                AotJob(f"gated, {named}", SOURCE, "gated_mlp", (x, first, first, down), options),
                AotJob(f"fused, {named}", SOURCE, "gated_mlp", (x, fused, None, down), options),
                AotJob(f"transposed, {named}", SOURCE, "mlp", (x, *turned), {**options, "transposed": True}),
            ]
        )
    return sizes


@pytest.mark.parametrize("turn", range(len(GENERATIONS)), ids=GENERATIONS)
def test_cases_of_each_kind_compile_and_copy_no_weight(turn: int) -> None:
    """Decode steps of every kind; of prefills, float32 and odd sizes each generation has a part, another every day."""
    named = op_jobs(DECODES, ["bfloat16"], kernel=SOURCE)
    named += op_jobs(part_of_today(PREFILLS, 2, turn), ["bfloat16"], kernel=SOURCE)
    named += op_jobs(part_of_today(FLOAT32, 2, turn + 1), ["float32"], kernel=SOURCE)
    # One kind of layer at each size: each generation meets every kind, and together they have all.
    odd = [job for at, kinds in enumerate(odd_jobs()) for job in part_of_today(kinds, len(kinds), turn + at)]
    results = compile_jobs([*named, *odd], GENERATIONS[turn])
    assert {result.job.name: result.error for result in results if not result.ok} == {}
    results = results[: len(named)]
    assert {one.job.name: one.moved_bytes for one in results if one.moved_bytes > rows_and_biases(one.job)} == {}
    assert all(rows_and_biases(job) < smallest_weight(job) for job in named)

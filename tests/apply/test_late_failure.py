"""Kernels that fail after they were swapped in: the tokens are right all the same, or the model is put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import copy_of_bundled, edit, spoiled_spec
from tests.support.models import Pair, attention, generate_reference, prompt
from tpu_kernels import KernelFailedError, KernelSpec, enable_tpu_kernels

GREEDY: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}

# (file, old, new, what the report must say)
FAILURES = {
    "raises when it is traced": (
        "op.py",
        "    _check(query, key, value, bounds, sinks)\n",
        '    if query.device.type == "tpu":\n        raise RuntimeError("no luck with this one")\n',
        "no luck with this one",
    ),
    "refused by the compiler": (
        "kernel.py",
        "    rows = inner_group * blocks.block_q\n    out = pl.pallas_call(",
        "    rows = inner_group * blocks.block_q\n    pltpu.set_tpu_interpret_mode(None)\n    out = pl.pallas_call(",
        "tpu_custom_call",
    ),
    "not finite": (
        "op.py",
        "scale=scale, softcap=softcap, **tuning)",
        'scale=scale, softcap=softcap, **tuning) * float("nan")',
        "its output is not finite in the first call",
    ),
}


@pytest.fixture(params=FAILURES)
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[KernelSpec, str]:
    file, old, new, says = FAILURES[request.param]
    repository = copy_of_bundled(tmp_path)
    edit(repository, file, old, new)
    if request.param == "refused by the compiler":
        edit(
            repository,
            "kernel.py",
            "    )(spans.reshape(-1), *operands)\n",
            "    )(spans.reshape(-1), *operands)\n    pltpu.set_tpu_interpret_mode(True)\n",
        )
    return spoiled_spec(repository), says


def test_compiled_generation_is_right_and_the_kernel_is_not_tried_again(
    one_layer: Pair, failing: tuple[KernelSpec, str], caplog: pytest.LogCaptureFixture
) -> None:
    spec, says = failing
    ids = prompt(20)
    want = generate_reference(one_layer.reference, ids, 4)[0]
    with enable_tpu_kernels(one_layer.model, specs=[spec], prefill_chunk=64, check=True) as report:
        assert {entry.kernel for entry in attention(report.swapped)} == {"attention/spoiled"}
        for _ in range(2):
            assert torch.equal(one_layer.model.generate(ids, **GREEDY), want)
        assert len(report.notes) == 1 and says in report.notes[0] and report.notes[0].endswith("(1 x)")
        assert {(call.phase, call.chosen, call.steps) for call in attention(report.calls)} == {
            ("prefill", "sdpa", 2),
            ("decode", "sdpa", 8),
        }
        assert all(says in call.reason for call in attention(report.calls))
    warnings = [record for record in caplog.records if "attention/spoiled" in record.getMessage()]
    assert len(warnings) == 1 and says in warnings[0].getMessage()


def test_on_reject_error_puts_the_model_back(one_layer: Pair, failing: tuple[KernelSpec, str]) -> None:
    spec, says = failing
    ids = prompt(20)
    report = enable_tpu_kernels(one_layer.model, specs=[spec], prefill_chunk=64, check=True, on_reject="error")
    with pytest.raises(KernelFailedError, match="the model was put back as it was") as error:
        one_layer.model.generate(ids, **GREEDY)
    assert says in str(error.value)
    assert not report.enabled and "generate" not in vars(one_layer.model)
    assert one_layer.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["raises when it is traced", "refused by the compiler"])
def test_eager_generation_is_right(one_layer: Pair, tmp_path: Path, name: str) -> None:
    file, old, new, says = FAILURES[name]
    repository = copy_of_bundled(tmp_path)
    edit(repository, file, old, new)
    ids = prompt(20)
    want = generate_reference(one_layer.reference, ids, 4)[0]
    try:
        with enable_tpu_kernels(one_layer.model, specs=[spoiled_spec(repository)], prefill_chunk=64) as report:
            assert torch.equal(one_layer.model.generate(ids, disable_compile=True, **GREEDY), want)
            assert says in report.notes[0] and not any(
                call.is_kernel and call.phase == "decode" for call in attention(report.calls)
            )
    finally:
        from jax.experimental.pallas import tpu as pltpu

        pltpu.set_tpu_interpret_mode(True)


def test_an_error_that_is_not_the_kernels_keeps_the_kernel(one_layer: Pair) -> None:
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        original = one_layer.model.lm_head.forward

        def broken(hidden: torch.Tensor) -> torch.Tensor:
            return original(hidden) @ torch.zeros(3, 3, device=hidden.device)

        one_layer.model.lm_head.forward = broken
        try:
            with pytest.raises(Exception, match=r"shape|size"):
                one_layer.model.generate(prompt(5), **GREEDY)
        finally:
            del one_layer.model.lm_head.forward
        torch._dynamo.reset()
        one_layer.model.generate(prompt(5), **GREEDY)
        assert all(call.is_kernel for call in attention(report.calls) if call.steps)


TOO_LARGE = """    if query.device.type == "tpu" and block_k != 128:
        raise RuntimeError("Ran out of memory in memory space vmem: exceeded its limit of 16.00M")
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_a_kernel_that_runs_out_of_vmem_takes_smaller_blocks(one_layer: Pair, tmp_path: Path, compiled: bool) -> None:
    repository = copy_of_bundled(tmp_path)
    check = "    _check(query, key, value, bounds, sinks)\n"
    edit(repository, "op.py", check, check + TOO_LARGE)
    ids = prompt(20)
    want = generate_reference(one_layer.reference, ids, 4)[0]
    with enable_tpu_kernels(one_layer.model, specs=[spoiled_spec(repository)], prefill_chunk=64) as report:
        for _ in range(2):
            assert torch.equal(one_layer.model.generate(ids, disable_compile=not compiled, **GREEDY), want)
        assert all(call.is_kernel for call in attention(report.calls))
        (note,) = report.notes
        assert "`attention/spoiled` ran out of VMEM and takes smaller blocks" in note and "16.00M" in note


def test_a_kernel_that_runs_out_of_vmem_with_the_smallest_blocks_too(one_layer: Pair, tmp_path: Path) -> None:
    repository = copy_of_bundled(tmp_path)
    check = "    _check(query, key, value, bounds, sinks)\n"
    edit(repository, "op.py", check, check + TOO_LARGE.replace(" and block_k != 128", ""))
    ids = prompt(20)
    want = generate_reference(one_layer.reference, ids, 4)[0]
    with enable_tpu_kernels(one_layer.model, specs=[spoiled_spec(repository)], prefill_chunk=64) as report:
        assert torch.equal(one_layer.model.generate(ids, **GREEDY), want)
        assert not any(call.is_kernel for call in attention(report.calls))
        assert [note.split(":")[0] for note in report.notes] == [
            "`attention/spoiled` ran out of VMEM and takes smaller blocks",
            "`attention/spoiled` failed, its fallback runs",
        ]

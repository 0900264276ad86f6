"""The suite itself: it passes what is right and names what is wrong, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpu_kernels.ops.norm.reference import norm_reference
from tpu_kernels.ops.norm.suite import all_probes, check_probe, make_probe, run_suite

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
def test_the_reference_passes(dtype: torch.dtype) -> None:
    assert run_suite(norm_reference, all_probes(dtype)) == []


@DTYPES
def test_sums_in_another_order_pass(dtype: torch.dtype) -> None:
    def backwards(x, weight, bias, **keywords):
        turned = [None if one is None else one.flip(-1).contiguous() for one in (x, weight, bias)]
        return norm_reference(*turned, **keywords).flip(-1)

    assert run_suite(backwards, all_probes(dtype)) == []


def spoilt(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., torch.Tensor]:
    """The reference, called with something changed."""

    def norm(x, weight, bias, **keywords):
        call = {"x": x, "weight": weight, "bias": bias, **keywords}
        return norm_reference(**(call | change(call)))

    return norm


def of(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda call: {name: None if call[name] is None else change(call[name])}


def other_heads(call: dict[str, Any]) -> dict[str, Any]:
    weight = call["weight"]
    return {"weight": weight.roll(1, 0) if weight is not None and weight.dim() == 2 else weight}


BROKEN = {
    "eps left out": spoilt(lambda call: {"eps": 1e-30}),
    "eps doubled": spoilt(lambda call: {"eps": 2 * call["eps"]}),
    "weight left out": spoilt(of("weight", torch.ones_like)),
    "weight of the next element": spoilt(of("weight", lambda weight: weight.roll(1, -1))),
    "weight of the next head": spoilt(other_heads),
    "bias left out": spoilt(of("bias", torch.zeros_like)),
    "mean not taken away": spoilt(lambda call: {"center": False}),
    "mean taken away": spoilt(lambda call: {"center": True}),
    "offset left out": spoilt(lambda call: {"offset": 0.0}),
    "a row less in the mean": spoilt(lambda call: {"x": call["x"] * (1 - 1 / call["x"].shape[-1]) ** 0.5}),
}
ROUNDED_ELSEWHERE = {
    f"always {order}": spoilt(lambda call, order=order: {"order": order})
    for order in ("round_then_scale", "scale_then_round", "round_offset")
}
ROUNDED_ELSEWHERE["weight rounded"] = spoilt(of("weight", torch.Tensor.bfloat16))


@pytest.mark.parametrize("name", BROKEN)
@DTYPES
def test_a_broken_implementation_fails(name: str, dtype: torch.dtype) -> None:
    mismatches = run_suite(BROKEN[name], all_probes(dtype))
    assert any("off by" in str(mismatch) for mismatch in mismatches)


@pytest.mark.parametrize("name", ROUNDED_ELSEWHERE)
def test_rounding_in_another_place_fails_in_bfloat16(name: str) -> None:
    mismatches = run_suite(ROUNDED_ELSEWHERE[name], all_probes(torch.bfloat16))
    assert any("rounded in another order" in str(mismatch) for mismatch in mismatches)


def test_wrong_shapes_dtypes_and_values_are_named() -> None:
    probe = make_probe("probe", (10, 64), weight=(64,))

    def check(change: Callable[[torch.Tensor], torch.Tensor]) -> str:
        return str(check_probe(lambda *a, **k: change(norm_reference(*a, **k)), probe))

    assert "got torch.float64" in check(lambda out: out.double())
    assert "expected torch.float32 [10, 64], got" in check(lambda out: out[..., :32])
    assert "10 of 640 values are not finite" in check(lambda out: out.index_fill(1, torch.tensor([3]), torch.nan))

"""The suite itself: it passes what is right and names what is wrong, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpu_kernels.ops.rotary.reference import rotary_reference
from tpu_kernels.ops.rotary.suite import all_probes, check_probe, make_probe, run_suite

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
def test_the_reference_passes(dtype: torch.dtype) -> None:
    assert run_suite(rotary_reference, all_probes(dtype)) == []


def spoilt(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., torch.Tensor]:
    """The reference, called with something changed."""

    def rotary(x, cos, sin, **keywords):
        call = {"x": x, "cos": cos, "sin": sin, **keywords}
        return rotary_reference(**(call | change(call)))

    return rotary


def tables(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda call: {"cos": change(call["cos"]), "sin": change(call["sin"])}


BROKEN = {
    "turned the other way": spoilt(lambda call: {"sin": -call["sin"]}),
    "always halves": spoilt(lambda call: {"layout": "half"}),
    "always pairs": spoilt(lambda call: {"layout": "interleaved"}),
    "the table of the next position": spoilt(tables(lambda table: table.roll(1, 1))),
    "the table of the next row": spoilt(tables(lambda table: table.roll(1, 0))),
    "the table of the next number": spoilt(tables(lambda table: table.roll(1, 2))),
    "half of the table, twice": spoilt(tables(lambda table: torch.cat([table[..., : table.shape[-1] // 2]] * 2, -1))),
    "not turned": lambda x, cos, sin, **_: x.clone(),
}
ROUNDED_ELSEWHERE = {
    "always each": spoilt(lambda call: {"rounding": "each"}),
    "always last": spoilt(lambda call: {"rounding": "last"}),
    "tables rounded": spoilt(tables(torch.Tensor.bfloat16)),
}


@pytest.mark.parametrize("name", BROKEN)
@DTYPES
def test_a_broken_implementation_fails(name: str, dtype: torch.dtype) -> None:
    mismatches = run_suite(BROKEN[name], all_probes(dtype))
    assert any("off by" in str(mismatch) for mismatch in mismatches)


@pytest.mark.parametrize("name", ROUNDED_ELSEWHERE)
def test_rounding_in_another_place_fails_in_bfloat16(name: str) -> None:
    mismatches = run_suite(ROUNDED_ELSEWHERE[name], all_probes(torch.bfloat16))
    assert any("rounded in another order" in str(mismatch) for mismatch in mismatches)


def test_what_is_not_turned_must_be_left_alone() -> None:
    probe = make_probe("partial", (2, 3, 4, 16), 8)
    mismatch = check_probe(lambda *a, **k: rotary_reference(*a, **k) * torch.tensor([1.0] * 15 + [1.0001]), probe)
    assert "beyond the first 8" in str(mismatch)


def test_wrong_shapes_dtypes_and_values_are_named() -> None:
    probe = make_probe("probe", (1, 2, 5, 64), 64)

    def check(change: Callable[[torch.Tensor], torch.Tensor]) -> str:
        return str(check_probe(lambda *a, **k: change(rotary_reference(*a, **k)), probe))

    assert "got torch.float64" in check(lambda out: out.double())
    assert "expected torch.float32 [1, 2, 5, 64], got" in check(lambda out: out[..., :32])
    assert "10 of 640 values are not finite" in check(lambda out: out.index_fill(3, torch.tensor([3]), torch.nan))

"""Cases of ops by name."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.lab import products
from tpu_kernels.errors import SpecError
from tpu_kernels.ops.attention.cases import CASES, SMALL_CASES
from tpu_kernels.ops.catalog import cases_named, cases_of, representatives_of, resized, small_cases_of

OP = "made_up"


@pytest.fixture
def two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op with cases of the functions `matmul` and `gated`."""
    module = products.module(OP)
    module.CASES = (*products.CASES, replace(products.CASES[0], name="other/decode", function="gated"))
    monkeypatch.setitem(sys.modules, f"tpu_kernels.ops.{OP}.cases", module)


def test_attention_by_any_name_of_its_function() -> None:
    assert cases_of("attention") == cases_of("attention", "static_attention") == CASES
    assert small_cases_of("attention") == SMALL_CASES
    assert [case.name for case in cases_named("attention", ["phi-4/decode"])] == ["phi-4/decode"]
    names = [case.name for case in representatives_of("attention")]
    assert names[:3] == ["qwen3-0.6b/decode", "qwen3-0.6b/prefill", "gpt-oss-20b/decode"]


@pytest.mark.usefixtures("two_functions")
def test_functions_of_an_op_have_cases_of_their_own() -> None:
    assert len(cases_of(OP)) == 7
    assert [case.name for case in cases_of(OP, "gated")] == ["other/decode"]
    assert cases_of(OP, "matmul") == products.CASES
    assert [case.name.split("/")[0] for case in representatives_of(OP, "matmul")] == ["wide", "wide", "tiny", "tiny"]
    # None of the representatives is of this function.
    assert [case.name for case in representatives_of(OP, "gated")] == ["other/decode"]
    with pytest.raises(SpecError, match=r"There are no made_up cases of `other`.*\n.*gated, matmul"):
        cases_of(OP, "other")
    with pytest.raises(ValueError, match="did you mean tiny"):
        cases_named(OP, ["tinny"])
    with pytest.raises(ValueError, match="there is no such case"):
        cases_named(OP, ["tiny"], "gated")


def test_an_op_without_cases() -> None:
    with pytest.raises(SpecError, match=r"The op `norms` has no named cases"):
        cases_of("norms")


def test_sizes_that_a_case_has() -> None:
    case = products.CASES[0]
    assert resized(case, tokens=None, batch=None) is case
    assert resized(case, tokens=8).sizes["tokens"] == 8
    attention = cases_named("attention", ["phi-4/decode"])[0]
    assert resized(attention, batch=2, max_len=8192, length=100).sizes == {
        "batch": 2,
        "q_heads": 40,
        "kv_heads": 10,
        "head_dim": 128,
        "tokens": 1,
        "max_len": 8192,
        "length": 100,
    }
    with pytest.raises(ValueError, match="has no such size"):
        resized(case, max_len=8)

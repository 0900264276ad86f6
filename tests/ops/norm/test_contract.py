from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_kernels.ops.norm.contract import FEATURES, NormShape, used_features, validate_call
from tpu_kernels.specs.vocabulary import FEATURES as SPEC_FEATURES


def test_a_good_call_gives_its_sizes() -> None:
    assert validate_call(x=(2, 3, 64), weight=(64,)) == NormShape(tokens=6, heads=None, hidden=64)
    assert validate_call(x=(64,)) == NormShape(tokens=1, heads=None, hidden=64)
    assert validate_call(x=(2, 3, 5, 64), weight=(64,)) == NormShape(tokens=30, heads=None, hidden=64)
    by_head = validate_call(
        x=(2, 3, 5, 64), weight=(5, 64), bias=(5, 64), center=True, dtypes=("bfloat16", "bfloat16", "bfloat16")
    )
    assert by_head == NormShape(tokens=6, heads=5, hidden=64)


@pytest.mark.parametrize("order", ["scale_then_round", "round_offset"])
def test_parameters_may_be_float32_where_the_result_keeps_its_dtype(order: str) -> None:
    validate_call(x=(2, 64), weight=(64,), order=order, dtypes=("bfloat16", "float32", None))


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"x": ()}, "no dimension of it empty", "x []"),
        ({"x": (0, 64)}, "no dimension of it empty", "x [0, 64]"),
        ({"weight": (2,)}, "weight [64] or [4, 64]", "weight [2]"),
        ({"weight": (64, 1)}, "weight [64] or [4, 64]", "weight [64, 1]"),
        ({"order": "never"}, "round_then_scale, scale_then_round, round_offset", "'never'"),
        ({"weight": None, "offset": 1.0}, "a weight", "the offset 1.0 alone"),
        ({"bias": (64,)}, "a bias with center", "center False"),
        ({"bias": (64,), "weight": None, "center": True}, "of the weight's shape", "weight None, bias [64]"),
        ({"bias": (4, 64), "center": True}, "of the weight's shape", "weight [64], bias [4, 64]"),
        ({"dtypes": ("float16", "float16", None)}, "x of dtype float32 or bfloat16", "float16"),
        ({"dtypes": ("bfloat16", "float32", None)}, "a weight of bfloat16 with x of bfloat16", "float32"),
        ({"dtypes": ("float32", "bfloat16", None)}, "a weight of float32 with x of float32", "bfloat16"),
    ],
)
def test_bad_calls_say_what_was_needed_and_what_came(change: dict[str, object], needs: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate_call(**{"x": (3, 4, 64), "weight": (64,), **change})
    first, needed, came = str(caught.value).splitlines()
    assert first == "These arguments are no call of a norm."
    assert needs in needed
    assert got in came


def test_features_are_those_of_specs() -> None:
    assert SPEC_FEATURES["norm"] == FEATURES


def test_used_features() -> None:
    assert used_features(weight=True) == {"rms_norm", "weight", "round_then_scale"}
    assert used_features(weight=False, center=True) == {"layer_norm"}
    assert used_features(weight=True, bias=True, center=True, offset=1.0, order="round_offset") == {
        "layer_norm",
        "weight",
        "bias",
        "weight_offset",
        "scale_then_round",
    }


def test_contract_and_cases_need_neither_torch_nor_jax() -> None:
    code = (
        "import sys, tpu_kernels.ops.norm.contract, tpu_kernels.ops.norm.cases; "
        "sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_kernels.ops.rotary.contract import FEATURES, RotaryShape, used_features, validate_call
from tpu_kernels.specs.vocabulary import FEATURES as SPEC_FEATURES

GOOD = {"x": (2, 8, 3, 64), "cos": (1, 3, 32), "sin": (1, 3, 32)}


def test_a_good_call_gives_its_sizes() -> None:
    call = validate_call(**GOOD, layout="interleaved", rounding="last", dtypes=("bfloat16", "float32", "float32"))
    assert call == RotaryShape(batch=2, heads=8, positions=3, head_dim=64, rotary_dim=32)
    assert validate_call(**{**GOOD, "cos": (2, 3, 64), "sin": (2, 3, 64)}).rotary_dim == 64


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"x": (8, 3, 64)}, "x [B, heads, T, D]", "x [8, 3, 64]"),
        ({"x": (2, 0, 3, 64)}, "no dimension of it empty", "x [2, 0, 3, 64]"),
        ({"cos": (3, 3, 32)}, "cos [2 or 1, 3, R]", "cos [3, 3, 32]"),
        ({"cos": (1, 4, 32)}, "cos [2 or 1, 3, R]", "cos [1, 4, 32]"),
        ({"cos": (3, 32)}, "cos [2 or 1, 3, R]", "cos [3, 32]"),
        ({"cos": (1, 3, 31)}, "an even R from 2 to 64", "cos [1, 3, 31]"),
        ({"cos": (1, 3, 66)}, "an even R from 2 to 64", "cos [1, 3, 66]"),
        ({"sin": (2, 3, 32)}, "sin [1, 3, 32], as cos", "sin [2, 3, 32]"),
        ({"layout": "pairs"}, "half or interleaved", "'pairs'"),
        ({"rounding": "never"}, "each or last", "'never'"),
        ({"dtypes": ("float16",) * 3}, "x of dtype float32 or bfloat16", "float16"),
        ({"dtypes": ("bfloat16", "bfloat16", "float32")}, "of one dtype, bfloat16 or float32", "bfloat16 and float32"),
        ({"dtypes": ("float32", "bfloat16", "bfloat16")}, "of one dtype, float32 or float32", "bfloat16 and bfloat16"),
    ],
)
def test_bad_calls_say_what_was_needed_and_what_came(change: dict[str, object], needs: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate_call(**{**GOOD, **change})
    first, needed, came = str(caught.value).splitlines()
    assert first == "These arguments are no call of a rotary embedding."
    assert needs in needed
    assert got in came


def test_features_are_those_of_specs() -> None:
    assert SPEC_FEATURES["rotary"] == FEATURES


def test_used_features() -> None:
    assert used_features(head_dim=64, rotary_dim=64) == {"half", "round_each"}
    assert used_features(head_dim=64, rotary_dim=32, layout="interleaved", rounding="last", query_only=True) == {
        "interleaved",
        "partial",
        "query_only",
        "round_last",
    }


def test_contract_and_cases_need_neither_torch_nor_jax() -> None:
    code = (
        "import sys, tpu_kernels.ops.rotary.contract, tpu_kernels.ops.rotary.cases; "
        "sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_kernels.ops.attention.contract import FEATURES, AttentionShape, used_features, validate_call
from tpu_kernels.specs.vocabulary import FEATURES as SPEC_FEATURES

GOOD = {
    "query": (2, 8, 3, 64),
    "key": (2, 2, 128, 64),
    "value": (2, 2, 128, 32),
    "bounds": (2, 1, 3, 2),
}


def test_a_good_call_gives_its_sizes() -> None:
    call = validate_call(**GOOD, sinks=(8,), dtypes=("bfloat16",) * 3, softcap=30.0)
    assert call == AttentionShape(2, 8, 2, 3, 128, 64, 32)
    assert call.output_shape == (2, 8, 3, 32)
    assert call.group == 4


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"query": (8, 3, 64)}, "query of four dimensions", "query [8, 3, 64]"),
        ({"key": (2, 2, 0, 64)}, "none of them empty", "key [2, 2, 0, 64]"),
        ({"query": (2, 7, 3, 64)}, "query heads in equal groups", "7 query heads, 2 key/value heads"),
        ({"key": (2, 2, 128, 48)}, "key [B, Hkv, S, D] = [2, 2, 128, 64]", "key [2, 2, 128, 48]"),
        ({"key": (2, 2, 64, 64)}, "key [B, Hkv, S, D] = [2, 2, 128, 64]", "key [2, 2, 64, 64]"),
        ({"value": (1, 2, 128, 32)}, "value [B, Hkv, S, Dv] = [2, 2, 128, 32]", "value [1, 2, 128, 32]"),
        ({"bounds": (2, 1, 1, 2)}, "bounds [B, 1, T, 2] = [2, 1, 3, 2]", "bounds [2, 1, 1, 2]"),
        ({"sinks": (2,)}, "sinks [Hq] = [8]", "sinks [2]"),
        ({"dtypes": ("float32", "bfloat16", "bfloat16")}, "of one dtype", "float32, bfloat16, bfloat16"),
        ({"dtypes": ("float16",) * 3}, "float32 or bfloat16", "float16"),
        ({"bounds_dtype": "int64"}, "bounds of dtype int32", "int64"),
        ({"softcap": 0.0}, "softcap None or above 0", "0.0"),
    ],
)
def test_a_bad_call_is_told_what_is_wrong(change: dict[str, object], needs: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate_call(**{**GOOD, **change})
    message = str(caught.value)
    assert needs in message.split("Needs:")[1].split("Got:")[0]
    assert got in message.split("Got:")[1]


def test_specs_know_the_same_features() -> None:
    assert SPEC_FEATURES["attention"] == FEATURES


def test_used_features() -> None:
    grouped = AttentionShape(1, 8, 2, 1, 128, 64, 64)
    assert used_features(grouped) == {"causal", "grouped_heads"}
    single = AttentionShape(1, 8, 1, 1, 128, 192, 128)
    assert used_features(single, window=4, left_padded=True, softcap=2.0, sinks=True) == set(FEATURES) - {
        "grouped_heads"
    }
    assert used_features(AttentionShape(1, 8, 8, 1, 128, 64, 64)) == {"causal"}


def test_contract_and_cases_load_neither_torch_nor_jax() -> None:
    code = (
        "import sys; import tpu_kernels.ops.attention.contract, tpu_kernels.ops.attention.cases; "
        "sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

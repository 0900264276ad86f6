from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_kernels.ops.experts.contract import ExpertsShape, used_features, validate_call
from tpu_kernels.specs.vocabulary import FEATURES

GOOD = {
    "hidden": (5, 64),
    "indices": (5, 2),
    "weights": (5, 2),
    "gate_up": (4, 96, 64),
    "down": (4, 64, 48),
}


def test_a_good_call_gives_its_sizes() -> None:
    call = validate_call(
        **GOOD, gate_up_bias=(4, 96), down_bias=(4, 64), dtypes=("bfloat16",) * 3, weights_dtype="float32", limit=7.0
    )
    assert call == ExpertsShape(5, 64, 48, 4, 2)
    assert call.expert_elements == 3 * 64 * 48
    assert (call.gate_up_shape, call.down_shape) == (GOOD["gate_up"], GOOD["down"])


def test_transposed_and_two_layer_calls() -> None:
    call = validate_call(**GOOD | {"gate_up": (4, 64, 96), "down": (4, 48, 64)}, transposed=True)
    assert call == ExpertsShape(5, 64, 48, 4, 2, transposed=True)
    assert validate_call(**GOOD | {"gate_up": (4, 48, 64)}, gated=False).product == 48


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"hidden": (5, 1, 64)}, "hidden of 2 dimensions", "hidden [5, 1, 64]"),
        ({"indices": (5, 0)}, "none of them empty", "indices [5, 0]"),
        ({"indices": (4, 2)}, "indices [T, K] = [5, 2]", "indices [4, 2]"),
        ({"weights": (5, 3)}, "weights [T, K] = [5, 2]", "weights [5, 3]"),
        ({"down": (4, 60, 48)}, "down [E, H, I] = [4, 64, 48]", "down [4, 60, 48]"),
        ({"gate_up": (4, 48, 64)}, "gate_up [E, 2I, H] = [4, 96, 64]", "gate_up [4, 48, 64]"),
        ({"transposed": True}, "down [E, I, H] = [4, 64, 64]", "down [4, 64, 48]"),
        ({"gate_up_bias": (4, 48)}, "gate_up_bias [E, 2I] = [4, 96]", "gate_up_bias [4, 48]"),
        ({"down_bias": (64,)}, "down_bias [E, H] = [4, 64]", "down_bias [64]"),
        ({"gate_up": (4, 48, 64), "gated": False, "interleaved": True}, "gated where interleaved", "not gated"),
        ({"rounding": "never"}, "rounding each or last", "'never'"),
        ({"limit": 0.0}, "limit None or above 0", "0.0"),
        ({"dtypes": ("float16",) * 3}, "float32 or bfloat16", "float16"),
        ({"indices_dtype": "int16"}, "int32 or int64", "int16"),
        ({"dtypes": ("float32",) * 3, "weights_dtype": "bfloat16"}, "weights of dtype float32", "bfloat16"),
    ],
)
def test_a_bad_call_is_told_what_is_wrong(change: dict[str, object], needs: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate_call(**{**GOOD, **change})
    message = str(caught.value)
    assert needs in message.split("Needs:")[1].split("Got:")[0]
    assert got in message.split("Got:")[1]


def test_specs_know_the_same_features() -> None:
    plain = used_features(activation="silu", transposed=True, interleaved=True, limit=1.0, bias=True)
    assert plain == {"gated", "transposed_weights", "interleaved", "clamp", "bias", "silu"}
    assert used_features(activation="relu2", gated=False) == {"two_layer", "relu2"}
    assert plain | {"two_layer", "relu2"} <= set(FEATURES["experts"])


def test_contract_and_cases_load_neither_torch_nor_jax() -> None:
    code = (
        "import sys; import tpu_kernels.ops.experts.contract, tpu_kernels.ops.experts.cases; "
        "sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

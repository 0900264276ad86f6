from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_kernels.ops.activations import ACTIVATIONS as FUNCTIONS
from tpu_kernels.ops.mlp.contract import (
    ACTIVATIONS,
    FEATURES,
    MlpShape,
    used_features,
    validate_gated,
    validate_two_layer,
)
from tpu_kernels.specs.vocabulary import FEATURES as SPEC_FEATURES

GATED = {"x": (2, 3, 8), "gate": (16, 8), "up": (16, 8), "down": (4, 16)}
PLAIN = {"x": (3, 8), "up": (16, 8), "down": (4, 16)}


def test_a_good_call_gives_its_sizes() -> None:
    call = validate_gated(**GATED, gate_bias=(16,), up_bias=(16,), down_bias=(4,), dtypes=("bfloat16",) * 4, limit=7.0)
    assert call == MlpShape((2, 3), 8, 16, 4)
    assert (call.tokens, call.output_shape) == (6, (2, 3, 4))
    assert validate_two_layer(**PLAIN, up_bias=(16,), down_bias=(4,)) == MlpShape((3,), 8, 16, 4)
    assert validate_two_layer(x=(8,), up=(8, 16), down=(16, 4), transposed=True) == MlpShape((), 8, 16, 4)
    assert MlpShape((), 8, 16, 4).tokens == 1


def test_gate_and_up_in_one_weight() -> None:
    call = validate_gated(x=(2, 8), gate=(32, 8), up=None, down=(4, 16), gate_bias=(32,))
    assert call == MlpShape((2,), 8, 16, 4)
    assert call.first_shape(fused=True) == (32, 8)


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"x": (0, 8)}, "x [..., H], no dimension of it empty", "x [0, 8]"),
        ({"gate": (16, 8, 1)}, "weights of two dimensions", "[16, 8, 1]"),
        ({"gate": (16, 9)}, "gate [I, H] = [16, 8]", "gate [16, 9]"),
        ({"up": (8, 8)}, "up [I, H] = [16, 8]", "up [8, 8]"),
        ({"down": (4, 8)}, "down [O, I] = [4, 16]", "down [4, 8]"),
        ({"up": None}, "down [O, I] = [4, 8]", "down [4, 16]"),
        ({"up": None, "gate": (15, 8)}, "a gate [2I, H]", "gate [15, 8]"),
        ({"up": None, "down": (4, 8), "gate_bias": (8,)}, "gate_bias [16]", "gate_bias [8]"),
        ({"up": None, "down": (4, 8), "up_bias": (8,)}, "no up_bias", "up_bias [8]"),
        ({"up_bias": (4,)}, "up_bias [16]", "up_bias [4]"),
        ({"down_bias": (16,)}, "down_bias [4]", "down_bias [16]"),
        ({"dtypes": ("float32", "bfloat16")}, "of one dtype, float32 or bfloat16", "float32, bfloat16"),
        ({"dtypes": ("float16",)}, "float32 or bfloat16", "float16"),
        ({"activation": "swish"}, "activation one of silu", "'swish'"),
        ({"rounding": "never"}, "rounding one of each, last", "'never'"),
        ({"limit": 0.0}, "limit None or above 0", "0.0"),
    ],
)
def test_a_bad_gated_call_is_told_what_is_wrong(change: dict[str, object], needs: str, got: str) -> None:
    check(lambda: validate_gated(**{**GATED, **change}), needs, got)


@pytest.mark.parametrize(
    ("change", "needs", "got"),
    [
        ({"transposed": True}, "up [H, I] = [8, 8]", "up [16, 8]"),
        ({"transposed": True, "up": (8, 16)}, "down [I, O] = [16, 16]", "down [4, 16]"),
        ({"up_bias": (8,)}, "up_bias [16]", "up_bias [8]"),
        ({"down_bias": (8,)}, "down_bias [4]", "down_bias [8]"),
        ({"activation": "prelu"}, "activation one of", "'prelu'"),
    ],
)
def test_a_bad_plain_call_is_told_what_is_wrong(change: dict[str, object], needs: str, got: str) -> None:
    check(lambda: validate_two_layer(**{**PLAIN, **change}), needs, got)


def check(call, needs: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert needs in message.split("Needs:")[1].split("Got:")[0]
    assert got in message.split("Got:")[1]


def test_activations_have_functions_and_specs_know_no_other_features() -> None:
    assert tuple(FUNCTIONS) == ACTIVATIONS
    assert set(SPEC_FEATURES["mlp"]) <= set(FEATURES)


def test_used_features() -> None:
    assert used_features("silu") == {"gated", "silu"}
    everything = used_features("gelu", fused=True, bias=True, transposed=True, limit=7.0)
    assert everything == {"gated", "fused_gate_up", "bias", "transposed_weights", "clamp", "gelu"}
    assert used_features("relu2", gated=False) == {"two_layer", "relu2"}


def test_contract_and_cases_load_neither_torch_nor_jax() -> None:
    code = (
        "import sys; import tpu_kernels.ops.mlp.contract, tpu_kernels.ops.mlp.cases; "
        "sys.exit(bool({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

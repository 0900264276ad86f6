"""The suite itself: it passes what is right and names what is wrong, whoever wrote it."""

from __future__ import annotations

import pytest
import torch

from tpu_kernels.ops.mlp.suite import REFERENCES, all_probes, check_probe, edge_probes, make_probe, run_suite

GATED = ("x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias")
PLAIN = ("x", "up", "down", "up_bias", "down_bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_references_pass(dtype: torch.dtype) -> None:
    assert run_suite(REFERENCES, all_probes(dtype)) == []


def spoilt(change):
    """The references, called with something changed: `change(function, arguments by name)`."""

    def of(name, names):
        def call(*tensors, **keywords):
            arguments = dict(zip(names, tensors, strict=True)) | keywords
            return REFERENCES[name](**change(name, arguments))

        return call

    return {"gated_mlp": of("gated_mlp", GATED), "mlp": of("mlp", PLAIN)}


def without(*names: str, value: object = None):
    return lambda _, call: call | {name: value for name in names if name in call}


def swapped(_: str, call: dict) -> dict:
    if "gate" not in call or call["up"] is not None:
        return call
    gate, up = call["gate"].chunk(2)
    return call | {"gate": torch.cat([up, gate])}


def other_activation(wrong: str, right: str):
    return lambda _, call: call | {"activation": wrong} if call["activation"] == right else call


def last_column_lost(_: str, call: dict) -> dict:
    down = call["down"].clone()
    (down if call.get("transposed") else down.T)[-1] = 0
    return call | {"down": down}


WRONG = {
    "no bias of the gate": without("gate_bias"),
    "no bias of up": without("up_bias"),
    "no bias of down": without("down_bias"),
    "no limit": without("limit"),
    "no offset": without("up_offset", value=0.0),
    "halves swapped": swapped,
    "a column of the intermediate values lost": last_column_lost,
    "gelu for gelu_tanh": other_activation("gelu", "gelu_tanh"),
    "gelu_tanh for gelu": other_activation("gelu_tanh", "gelu"),
    "gelu for gelu_10": other_activation("gelu", "gelu_10"),
    "relu for relu6": other_activation("relu", "relu6"),
    "relu for leaky_relu": other_activation("relu", "leaky_relu"),
    "quick_gelu for silu": other_activation("quick_gelu", "silu"),
    "silu for hardswish": other_activation("silu", "hardswish"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_seen_in_float32(name: str) -> None:
    assert run_suite(spoilt(WRONG[name]), all_probes()), f"the suite does not see: {name}"


@pytest.mark.parametrize(("wrong", "right"), [("last", "each"), ("each", "last")])
def test_a_wrong_order_of_roundings_is_seen_in_bfloat16(wrong: str, right: str) -> None:
    def change(function: str, call: dict) -> dict:
        return call | {"rounding": wrong} if function == "gated_mlp" and call.get("rounding") == right else call

    found = run_suite(spoilt(change), edge_probes(torch.bfloat16))
    assert [mismatch for mismatch in found if "rounded otherwise" in mismatch.message]


def test_messages_name_the_place_and_the_kind() -> None:
    probe = make_probe("one", (2,), 16, 24, 8, "silu")

    def check(spoil) -> str:
        def call(*tensors, **keywords):
            return spoil(REFERENCES["gated_mlp"](*tensors, **keywords).clone())

        return str(check_probe({"gated_mlp": call}, probe))

    def moved(out: torch.Tensor) -> torch.Tensor:
        out[1, 3] += 1
        return out

    assert check(lambda out: out) == "None"
    assert "at [1, 3], expected" in check(moved)
    assert "6.2% of the values are too far off" in check(moved)
    assert "16 of 16 values are not finite" in check(lambda out: out * torch.nan)
    assert "expected torch.float32 [2, 8], got torch.float64 [2, 8]" in check(torch.Tensor.double)
    assert "got torch.float32 [2, 7]" in check(lambda out: out[:, 1:])

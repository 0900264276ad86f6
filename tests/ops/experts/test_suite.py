"""The suite itself: it passes what is right and names what is wrong, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpu_kernels.ops.experts import reference
from tpu_kernels.ops.experts.reference import experts_reference
from tpu_kernels.ops.experts.suite import Probe, all_probes, check_probe, counted, run_suite

NAMES = ("hidden", "indices", "weights", "gate_up", "down", "gate_up_bias", "down_bias")


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    return [*all_probes(), *all_probes(torch.bfloat16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_passes(dtype: torch.dtype) -> None:
    assert run_suite(experts_reference, all_probes(dtype)) == []


def test_names_of_probes_are_unique() -> None:
    names = [probe.name for probe in all_probes()]
    assert len(set(names)) == len(names)


def spoilt(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., torch.Tensor]:
    """The reference, called with something changed."""

    def experts(*arguments: torch.Tensor, **keywords: Any) -> torch.Tensor:
        call = {**dict(zip(NAMES, arguments, strict=True)), **keywords}
        return experts_reference(**{**call, **change(call)})

    return experts


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda call: {name: None}


def halves_swapped(call: dict[str, Any]) -> dict[str, Any]:
    if not call["gated"]:
        return {}
    weight, axis = call["gate_up"], 2 if call["transposed"] else 1
    if call["interleaved"]:
        return {"gate_up": weight.unflatten(axis, (-1, 2)).flip(axis + 1).flatten(axis, axis + 1)}
    return {"gate_up": weight.roll(weight.shape[axis] // 2, axis)}


def sentinels_clamped(call: dict[str, Any]) -> dict[str, Any]:
    return {"indices": call["indices"].clamp(0, call["gate_up"].shape[0] - 1)}


def weights_rounded(call: dict[str, Any]) -> dict[str, Any]:
    return {"weights": call["weights"].to(torch.bfloat16)}


def computed_in_float32(*arguments: torch.Tensor, **keywords: Any) -> torch.Tensor:
    wide = [one.float() if one is not None and one.is_floating_point() else one for one in arguments]
    return experts_reference(*wide, **keywords).to(arguments[0].dtype)


BROKEN = {
    "gate and up swapped": spoilt(halves_swapped),
    "halves not interleaved": spoilt(lambda call: {"interleaved": False}),
    "limit left out": spoilt(without("limit")),
    "offset left out": spoilt(lambda call: {"up_offset": 0.0}),
    "first bias left out": spoilt(without("gate_up_bias")),
    "second bias left out": spoilt(without("down_bias")),
    "another activation": spoilt(lambda call: {"activation": "silu"}),
    "gelu with tanh": spoilt(lambda call: {"activation": call["activation"].replace("gelu_tanh", "gelu")}),
    "weights of the neighbour": spoilt(lambda call: {"weights": call["weights"].roll(1, 1)}),
    "tokens of the neighbour": spoilt(lambda call: {"indices": call["indices"].roll(1, 0)}),
    "sentinels taken for the last expert": spoilt(sentinels_clamped),
    "rounded once": spoilt(lambda call: {"rounding": "last"}),
    "rounded at each step": spoilt(lambda call: {"rounding": "each"}),
    "weights rounded to bfloat16": spoilt(weights_rounded),
    "nothing rounded but the result": computed_in_float32,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_implementation_fails(name: str, probes: list[Probe]) -> None:
    assert run_suite(BROKEN[name], probes)


def test_a_bias_that_is_added_before_the_rounding_is_seen(monkeypatch: pytest.MonkeyPatch, probes: list[Probe]) -> None:
    wanted = {id(probe): experts_reference(*probe.arguments, **probe.keywords) for probe in probes}

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product = x.float() @ weight.float().t()
        return (product if bias is None else product + bias.float()).to(x.dtype)

    monkeypatch.setattr(reference, "_linear", linear)
    early = {id(probe): experts_reference(*probe.arguments, **probe.keywords) for probe in probes}
    shares = [float((early[key] != wanted[key]).double().mean()) for key in wanted]
    assert max(shares) > 0.1


def test_wrong_shapes_dtypes_and_values_are_named(probes: list[Probe]) -> None:
    probe = next(probe for probe in probes if probe.name == "tiny")

    def check(change: Callable[[torch.Tensor], torch.Tensor]) -> str:
        return str(check_probe(lambda *a, **k: change(experts_reference(*a, **k)), probe))

    assert "got torch.float64" in check(lambda out: out.double())
    assert "expected torch.float32 [37, 32], got" in check(lambda out: out[:, :16])
    assert "are not finite" in check(lambda out: out / 0)
    assert "off by" in check(lambda out: out * 1.01)


def test_counted_makes_runs_of_experts() -> None:
    indices = counted([0, 3, 1], 2)
    assert indices.shape == (2, 2)
    assert sorted(indices.flatten().tolist()) == [1, 1, 1, 2]

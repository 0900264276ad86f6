"""The suite itself: it passes what is right and names what is wrong, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tpu_kernels.ops.attention.reference import static_attention_reference
from tpu_kernels.ops.attention.suite import Probe, all_probes, causal_intervals, check_probe, run_suite

Call = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    return list(all_probes())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_passes(dtype: torch.dtype) -> None:
    assert run_suite(static_attention_reference, all_probes(dtype)) == []


def spoilt(change: Callable[[Call], Call], **options: object) -> Callable[..., torch.Tensor]:
    """The reference, called with something changed."""

    def attend(query, key, value, bounds, sinks, *, scale, softcap):
        call = {"query": query, "key": key, "value": value, "bounds": bounds, "sinks": sinks}
        keywords = {"scale": scale, "softcap": softcap, **options}
        return static_attention_reference(**change(call), **keywords)

    return attend


def shifted(start: int, end: int) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        moved = call["bounds"] + torch.tensor([start, end], dtype=torch.int32)
        empty = call["bounds"][..., :1] >= call["bounds"][..., 1:]
        return call | {"bounds": torch.where(empty, call["bounds"], moved)}

    return change


def heads_interleaved(call: Call) -> Call:
    kv_heads, heads = call["key"].shape[1], call["query"].shape[1]
    order = torch.arange(heads) % kv_heads  # head h reads h % Hkv instead of h // group
    return call | {"key": call["key"][:, order], "value": call["value"][:, order]}


BROKEN = {
    "one key too many at the start": spoilt(shifted(-1, 0)),
    "one key too few at the start": spoilt(shifted(1, 0)),
    "one key too many at the end": spoilt(shifted(0, 1)),
    "one key too few at the end": spoilt(shifted(0, -1)),
    "softcap left out": spoilt(lambda call: call, softcap=None),
    "sinks left out": spoilt(lambda call: call | {"sinks": None}),
    "sinks of the next head": spoilt(
        lambda call: call | {"sinks": None if call["sinks"] is None else call["sinks"].roll(1)}
    ),
    "wrong group": spoilt(heads_interleaved),
    "wrong scale": spoilt(lambda call: call, scale=0.125),
    "bounds of another row": spoilt(lambda call: call | {"bounds": call["bounds"].roll(1, dims=0)}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_implementation_fails(name: str, probes: list[Probe]) -> None:
    mismatches = run_suite(BROKEN[name], probes)
    assert mismatches
    assert "off by" in str(mismatches[0])


def test_wrong_shapes_dtypes_and_values_are_named(probes: list[Probe]) -> None:
    probe = next(probe for probe in probes if "prefill, edges" in probe.name)

    def check(change: Callable[[torch.Tensor], torch.Tensor]) -> str:
        mismatch = check_probe(lambda *a, **k: change(static_attention_reference(*a, **k)), probe)
        return str(mismatch)

    assert "got torch.float64" in check(lambda out: out.double())
    assert "expected torch.float32 [5, 6, 40, 128], got" in check(lambda out: out[..., :64])
    assert "are not finite" in check(lambda out: out.masked_fill(out == 0, torch.nan))
    assert "sees no key is not zero" in check(lambda out: out.masked_fill(out == 0, 1e-6))


def test_causal_intervals() -> None:
    intervals = causal_intervals(3, starts=[0, 2], ends=[4, 3], window=2)
    assert intervals.tolist() == [[[0, 2], [1, 3], [2, 4]], [[2, 1], [2, 2], [2, 3]]]

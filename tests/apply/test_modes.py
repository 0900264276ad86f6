"""generate stays generate: modes, inputs and outputs of an enabled model against the plain call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    CompileConfig,
    TextStreamer,
)

from tests.support.models import Pair, attention, generate_reference, left_padded, prompt
from tpu_kernels import emulator, enable_tpu_kernels

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def test_sampling_with_a_seed_gives_the_reference_tokens(one_layer: Pair) -> None:
    ids = prompt(21, batch=3)
    sampling: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    torch.manual_seed(7)
    want = one_layer.reference.generate(ids, **sampling)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        torch.manual_seed(7)
        assert torch.equal(one_layer.model.generate(ids, **sampling), want)
        torch.manual_seed(8)
        assert not torch.equal(one_layer.model.generate(ids, **sampling), want)
        torch.manual_seed(7)
        want = one_layer.reference.generate(ids[:1], num_return_sequences=3, **sampling)
        torch.manual_seed(7)
        assert torch.equal(one_layer.model.generate(ids[:1], num_return_sequences=3, **sampling), want)
        assert not report.notes and all(call.is_kernel for call in attention(report.calls))


def test_a_streamer_sees_every_token(one_layer: Pair) -> None:
    class Collect(TextStreamer):
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer, ids = Collect(), prompt(9)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64):
        out = one_layer.model.generate(ids, streamer=streamer, **GREEDY)
    assert streamer.seen == out[0].tolist() and streamer.ended


@pytest.mark.parametrize("sample", [False, True], ids=["beam search", "beam sample"])
def test_beams(one_layer: Pair, sample: bool) -> None:
    ids, mask = left_padded([9, 30])
    kwargs: dict[str, Any] = {**GREEDY, "num_beams": 3, "num_return_sequences": 2, "do_sample": sample}
    torch.manual_seed(4)
    want = one_layer.reference.generate(ids, attention_mask=mask, **kwargs)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        torch.manual_seed(4)
        assert torch.equal(one_layer.model.generate(ids, attention_mask=mask, **kwargs), want)
        assert not report.notes and all(call.is_kernel for call in attention(report.calls))


def test_without_compiling(one_layer: Pair) -> None:
    ids, mask = left_padded([30, 70])
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        first = one_layer.model.generate(ids, attention_mask=mask, disable_compile=True, **GREEDY)
        before = emulator.compilations()
        ids2, mask2 = left_padded([41, 52])
        second = one_layer.model.generate(ids2, attention_mask=mask2, disable_compile=True, **GREEDY)
        assert emulator.compilations() == before
        assert {(call.phase, call.steps, call.is_kernel) for call in attention(report.calls)} == {
            ("decode", 10, True),
            ("prefill", 3, True),
        }
        assert report.programs == {}
    for out, padded, lengths in ((first, ids, [30, 70]), (second, ids2, [41, 52])):
        for row, length in enumerate(lengths):
            want = generate_reference(one_layer.reference, padded[row : row + 1, -length:], 5)[0]
            assert torch.equal(out[row, -length - 5 :], want[0])


def test_inputs_on_the_tpu_come_back_there(one_layer: Pair) -> None:
    ids = prompt(33)
    want = generate_reference(one_layer.reference, ids, 5)[0]
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64):
        assert one_layer.model.generate(ids, **GREEDY).device.type == "cpu"
        before = emulator.compilations()
        got = one_layer.model.generate(ids.to("tpu"), attention_mask=torch.ones_like(ids).to("tpu"), **GREEDY)
        assert got.device.type == "tpu" and torch.equal(got.cpu(), want)
        assert emulator.compilations() == before
        full = one_layer.model.generate(
            input_ids=ids.to("tpu"), return_dict_in_generate=True, output_logits=True, **GREEDY
        )
        assert full.sequences.device.type == "tpu" and full.logits[0].device.type == "tpu"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "dynamic"}, "cache_implementation='dynamic'"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ],
)
def test_other_modes_run_the_plain_way_and_say_so(one_layer: Pair, call: dict[str, Any], reason: str) -> None:
    ids = prompt(7)
    kwargs = {**GREEDY, **call}
    torch.manual_seed(3)
    want = one_layer.reference.generate(ids, **kwargs)
    with enable_tpu_kernels(one_layer.model) as report:
        torch.manual_seed(3)
        got = one_layer.model.generate(ids, **kwargs)
        assert report.notes == (f"generate ran the plain way: {reason} (1 x)",)
        assert reason in str(report)
    if call.get("return_dict_in_generate"):
        assert len(got.hidden_states) == len(want.hidden_states)
        got, want = got.sequences, want.sequences
    assert torch.equal(got, want)


def test_a_compile_config_keeps_fullgraph_and_nothing_that_torch_tpu_refuses(one_layer: Pair) -> None:
    ids = prompt(19)
    want = generate_reference(one_layer.reference, ids, 5)[0]
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        got = one_layer.model.generate(ids, compile_config=CompileConfig(fullgraph=True), **GREEDY)
        assert torch.equal(got, want) and len(report.programs) == 2 and not report.notes

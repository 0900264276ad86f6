"""Caches of an enabled model: returned, continued, grown, prepared ahead; and what is said of settings not used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.models import Pair, attention, generate_reference, left_padded, prompt
from tpu_kernels import StackError, emulator, enable_tpu_kernels

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def test_scores_and_the_cache_are_returned(qwen3: Pair) -> None:
    ids = prompt(30)
    flags = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    want = qwen3.reference.generate(ids, **GREEDY, **flags)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64):
        got = qwen3.model.generate(ids, **GREEDY, **flags)
    assert type(got) is type(want) and torch.equal(got.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(got.scores), torch.stack(want.scores), atol=1e-3, rtol=0)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), atol=1e-3, rtol=0)
    layer, reference = got.past_key_values.layers[1], want.past_key_values.layers[1]
    assert got.past_key_values.get_seq_length() == reference.get_seq_length() == 34
    torch.testing.assert_close(layer.keys[:, :, :34].cpu(), reference.keys, atol=1e-3, rtol=0)
    torch.testing.assert_close(layer.values[:, :, :34].cpu(), reference.values, atol=1e-3, rtol=0)


def test_a_returned_cache_can_be_continued(one_layer: Pair) -> None:
    ids, more = prompt(30), prompt(70, seed=3)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        first = one_layer.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, more), dim=1)
        second = one_layer.model.generate(whole, past_key_values=first.past_key_values, **GREEDY)
        assert not report.notes
    assert torch.equal(second, generate_reference(one_layer.reference, whole, 5)[0])


def test_a_cache_continued_at_an_odd_place_up_to_its_end(one_layer: Pair) -> None:
    ids = prompt(30)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        first = one_layer.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, prompt(210, seed=5)), dim=1)
        cache = first.past_key_values
        got = one_layer.model.generate(whole, past_key_values=cache, return_dict_in_generate=True, **GREEDY)
        runs = report.programs["prefill batch 1 tokens 64 cache 256"]
        assert runs == 1 + (256 - 34) // 64
        assert cache.get_max_length() == 256 and cache.get_seq_length() == 249
    assert torch.equal(got.sequences, generate_reference(one_layer.reference, whole, 5)[0])


def test_a_returned_cache_grows_to_the_next_bucket(one_layer: Pair) -> None:
    ids = prompt(30)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        first = one_layer.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, prompt(240, seed=6)), dim=1)
        cache = first.past_key_values
        got = one_layer.model.generate(whole, past_key_values=cache, **GREEDY)
        assert cache.get_max_length() == 512 and cache.get_seq_length() == whole.shape[1] + 4
        assert not report.notes
    assert torch.equal(got, generate_reference(one_layer.reference, whole, 5)[0])


def test_a_returned_cache_can_be_cropped_and_made_in_inference_mode(one_layer: Pair) -> None:
    ids = prompt(30)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        with torch.inference_mode():
            first = one_layer.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        cache, tokens = first.past_key_values, first.sequences.clone()
        cache.crop(-4)
        assert cache.get_seq_length() == 30
        with pytest.raises(ValueError, match="negative number"):
            cache.crop(4)
        whole = torch.cat((tokens[:, :30], prompt(9, seed=8)), dim=1)
        got = one_layer.model.generate(whole, past_key_values=cache, **GREEDY)
        assert not report.notes
    assert torch.equal(got, generate_reference(one_layer.reference, whole, 5)[0])


def test_warm_up_leaves_nothing_to_compile(one_layer: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        steps = report.warm_up(batch_sizes=[2, 1], max_lens=[100])
        assert [(step.batch_size, step.max_len, len(step.programs)) for step in steps] == [(1, 100, 2), (2, 100, 2)]
        assert all(step.seconds > 0 for step in steps) and "2/2" in capsys.readouterr().err
        before = emulator.compilations()
        for lengths in ([40], [7, 60]):
            ids, mask = left_padded(lengths)
            got = one_layer.model.generate(ids, attention_mask=mask, **GREEDY)
            want = generate_reference(one_layer.reference, ids[-1:, -lengths[-1] :], 5)[0]
            assert torch.equal(got[-1:, -lengths[-1] - 5 :], want)
        assert emulator.compilations() == before
        with pytest.raises(ValueError, match="batch sizes from 1 and lengths from 2, got 0 and 100"):
            report.warm_up([0], [100])
    with pytest.raises(StackError, match="not enabled"):
        report.warm_up()


def test_a_mask_with_a_hole_runs_the_fallback_and_is_counted_apart(one_layer: Pair) -> None:
    ids, whole = prompt(20), torch.ones(1, 20, dtype=torch.int64)
    hole = whole.clone()
    hole[:, 4:7] = 0
    want = {id(mask): one_layer.reference.generate(ids, attention_mask=mask, **GREEDY) for mask in (whole, hole)}
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        for mask in (whole, hole, whole):
            assert torch.equal(one_layer.model.generate(ids, attention_mask=mask, **GREEDY), want[id(mask)])
        steps = {(call.phase, call.is_kernel): call.steps for call in attention(report.calls) if "0" in call.path}
    assert steps == {("decode", True): 10, ("decode", False): 5, ("prefill", True): 2, ("prefill", False): 1}


def test_settings_that_are_not_used_are_said(one_layer: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        enable_tpu_kernels(one_layer.model, prefill_chunk=64)
        assert not caplog.records
        enable_tpu_kernels(one_layer.model, prefill_chunk=128)
        assert "enabled already; these arguments change nothing" in caplog.text
        one_layer.model.generate(prompt(5), prefill_chunk_size=32, **GREEDY)
        assert "prefill_chunk_size=32 was not used" in report.notes[0]


def test_max_cache_len_of_the_call_prepares_a_longer_cache(one_layer: Pair) -> None:
    ids = prompt(12)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        one_layer.model.generate(ids, cache_implementation="static", max_cache_len=500, **GREEDY)
        assert set(report.programs) == {
            "prefill batch 1 tokens 64 cache 512",
            "decode batch 1 tokens 1 cache 512",
        }

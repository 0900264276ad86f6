"""generate with what changes its course: processors, embeddings, an assistant, attentions, continuous batching."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, Qwen3Config
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tests.support.models import TINY, Pair, attention, generate_reference, on_tpu, pair, prompt
from tpu_kernels import enable_tpu_kernels

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


class OnlyEven(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, 1::2] = float("-inf")
        return scores


@pytest.mark.parametrize("beams", [1, 3])
def test_processors_and_allowed_tokens_run_on_the_static_route(one_layer: Pair, beams: int) -> None:
    ids = prompt(19, batch=2)
    kwargs: dict[str, Any] = {
        **GREEDY,
        "num_beams": beams,
        "logits_processor": LogitsProcessorList([OnlyEven()]),
        "prefix_allowed_tokens_fn": lambda row, tokens: list(range(20 + 30 * row, 50 + 30 * row)),
    }
    want = one_layer.reference.generate(ids, **kwargs)
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        got = one_layer.model.generate(ids, **kwargs)
        assert not report.notes and all(call.is_kernel for call in attention(report.calls))
    assert torch.equal(got, want)
    assert (got[:, 19:] % 2 == 0).all() and (got[1, 19:] >= 50).all()


def test_embeddings_run_the_plain_way(one_layer: Pair) -> None:
    ids = prompt(6)
    embeddings = one_layer.reference.get_input_embeddings()(ids)
    want = one_layer.reference.generate(inputs_embeds=embeddings, **GREEDY)
    with enable_tpu_kernels(one_layer.model) as report:
        got = one_layer.model.generate(inputs_embeds=embeddings.to("tpu"), **GREEDY)
        assert report.notes == ("generate ran the plain way: inputs besides the tokens: inputs_embeds (1 x)",)
    assert torch.equal(got.cpu(), want)


def test_an_assistant_runs_the_plain_way(one_layer: Pair) -> None:
    ids = prompt(6)
    want = generate_reference(one_layer.reference, ids, 4)[0]
    assistant = on_tpu(one_layer.reference)
    kwargs = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    with enable_tpu_kernels(one_layer.model) as report:
        got = one_layer.model.generate(ids.to("tpu"), assistant_model=assistant, **kwargs)
        assert report.notes == ("generate ran the plain way: assisted generation (1 x)",)
    assert torch.equal(got.cpu(), want)


def test_attentions_run_the_plain_way() -> None:
    both = pair(Qwen3Config(**TINY, num_hidden_layers=1))
    both.model.set_attn_implementation("eager")
    ids, kwargs = prompt(6), {**GREEDY, "output_attentions": True, "return_dict_in_generate": True}
    want = both.reference.generate(ids, **kwargs)
    with enable_tpu_kernels(both.model) as report:
        got = both.model.generate(ids, **kwargs)
        assert report.notes == ("generate ran the plain way: output_attentions (1 x)",)
    assert torch.equal(got.sequences.cpu(), want.sequences)
    for step, expected in zip(got.attentions, want.attentions, strict=True):
        torch.testing.assert_close(step[0].cpu(), expected[0], atol=1e-4, rtol=0)


BATCHING: dict[str, Any] = {
    "generation_config": GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1, pad_token_id=0),
    "continuous_batching_config": ContinuousBatchingConfig(num_blocks=8, page_size=16, max_batch_tokens=16),
}


def test_continuous_batching_is_kept_and_said() -> None:
    both = pair(Qwen3Config(**TINY, num_hidden_layers=1))
    prompts = [prompt(4)[0].tolist(), prompt(2)[0].tolist()]
    want = both.reference.generate_batch(prompts, **BATCHING)
    tokens = [want[name].generated_tokens for name in sorted(want)]
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        got = both.model.generate_batch(prompts, **BATCHING)
        assert [got[name].generated_tokens for name in sorted(got)] == tokens
        assert "generate_batch ran the plain way: continuous batching (1 x)" in report.notes
        assert not attention(report.calls), "no layer of ours had a part in it"
        after = both.model.generate(prompt(4), max_new_tokens=3, do_sample=False, eos_token_id=None)
        assert after[0, 4:].tolist() == tokens[0] and all(call.is_kernel for call in attention(report.calls))


def test_a_manager_that_is_kept_for_the_next_batch() -> None:
    both = pair(Qwen3Config(**TINY, num_hidden_layers=1))
    prompts = [prompt(4)[0].tolist()]
    want = both.reference.generate_batch(prompts, **BATCHING)
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        for _ in range(2):
            got = both.model.generate_batch(prompts, persistent_manager=True, **BATCHING)
            assert [each.generated_tokens for each in got.values()] == [each.generated_tokens for each in want.values()]
        after = both.model.generate(prompt(4), max_new_tokens=3, do_sample=False, eos_token_id=None)
        assert [after[0, 4:].tolist()] == [each.generated_tokens for each in want.values()]
        assert attention(report.calls) and all(call.is_kernel for call in attention(report.calls))
    both.model.destroy_cached_continuous_batching_manager()


def test_early_exit_leaves_the_model_as_it_was() -> None:
    """The model assists itself with its first layer: for that time it has one layer."""
    both = pair(Qwen3Config(**TINY, num_hidden_layers=2))
    ids, kwargs = prompt(6), {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    want = generate_reference(both.reference, ids, 3)[0]
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        assert torch.equal(both.model.generate(ids.to("tpu"), assistant_early_exit=1, **kwargs).cpu(), want)
        assert torch.equal(both.model.generate(ids, **kwargs), want)
        assert any(call.is_kernel for call in attention(report.calls))


def test_a_manager_of_continuous_batching_that_is_not_stopped(one_layer: Pair) -> None:
    """Before its end, generate runs the plain way; after it, by kernels again."""
    ids, kwargs = prompt(4), {"max_new_tokens": 2, "do_sample": False}
    want = generate_reference(one_layer.reference, ids, 2)[0]
    with enable_tpu_kernels(one_layer.model, prefill_chunk=64) as report:
        manager = one_layer.model.init_continuous_batching(**BATCHING)
        assert one_layer.model.config._attn_implementation == "sdpa"
        assert torch.equal(one_layer.model.generate(ids, **kwargs).cpu(), want)
        assert one_layer.model.config._attn_implementation == "sdpa" and not attention(report.calls)
        assert "generate ran the plain way: a manager of continuous batching is at work (1 x)" in report.notes
        manager.stop()
        assert torch.equal(one_layer.model.generate(ids, **kwargs), want)
        assert attention(report.calls) and all(call.is_kernel for call in attention(report.calls))

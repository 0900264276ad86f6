"""Calls past generate: training, direct calls, a user's own compile, pipelines, PEFT."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen3Config,
    pipeline,
)

from tests.support.models import TINY, Pair, attention, build, generate_reference, on_tpu, pair, prompt
from tpu_kernels import ModelStructureError, enable_tpu_kernels
from tpu_kernels.demo import demo_model_path

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def test_training_mode_and_gradients_run_the_original_layers(qwen3: Pair) -> None:
    ids = prompt(10).to("tpu")
    reference = qwen3.reference(ids.cpu(), labels=ids.cpu())
    with enable_tpu_kernels(qwen3.model) as report:
        out = qwen3.model(ids, labels=ids)
        out.loss.backward()
        weight = qwen3.model.model.layers[0].self_attn.q_proj.weight
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0)
        qwen3.model.zero_grad(set_to_none=True)
        torch.testing.assert_close(out.logits.detach().cpu(), reference.logits.detach(), atol=1e-3, rtol=0)
        assert {call.reason.split(" (")[0] for call in attention(report.calls)} == {"gradients are wanted"}
        qwen3.model.train()
        try:
            with torch.no_grad():
                qwen3.model(ids)
            qwen3.model.generate(prompt(4), max_new_tokens=2, do_sample=False)
        finally:
            qwen3.model.eval()
        assert "the model is in training mode" in {call.reason for call in attention(report.calls)}
        assert "generate ran the plain way: the model is in training mode (1 x)" in report.notes
        assert not any(call.is_kernel for call in attention(report.calls))


def test_a_model_cast_after_its_first_call() -> None:
    both = pair(Qwen3Config(**TINY, num_hidden_layers=1))
    ids = prompt(12)
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        both.model.generate(ids, **GREEDY)
        both.model.to(torch.bfloat16)
        out = both.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        assert out.past_key_values.layers[0].keys.dtype == torch.bfloat16
        assert all(call.is_kernel for call in attention(report.calls))


def test_rotary_frequencies_that_depend_on_the_length_run_the_plain_way() -> None:
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    sizes = {name: size for name, size in TINY.items() if name != "head_dim"}
    config = Phi3Config(**{**sizes, "hidden_size": 128}, num_hidden_layers=1, rope_parameters=rope)
    config.original_max_position_embeddings = 64
    both = pair(config)
    with enable_tpu_kernels(both.model, prefill_chunk=8) as report:
        for length in (30, 100):
            ids = prompt(length)
            got = both.model.generate(ids, disable_compile=True, **GREEDY)
            assert torch.equal(got, generate_reference(both.reference, ids, 5)[0])
        assert "rotary frequencies change with the length of the text (rope_type longrope) (2 x)" in report.notes[0]
    kinds = {type(buffer) for buffer in both.model.buffers()}
    assert kinds == {torch.Tensor}


def test_classifier_free_guidance_runs_the_plain_way(qwen3: Pair) -> None:
    ids = prompt(8)
    want = qwen3.reference.generate(ids, guidance_scale=1.5, **GREEDY)
    with enable_tpu_kernels(qwen3.model) as report:
        assert torch.equal(qwen3.model.generate(ids.to("tpu"), guidance_scale=1.5, **GREEDY).cpu(), want)
        assert report.notes == ("generate ran the plain way: guidance_scale=1.5 (1 x)",)


def test_the_text_generation_pipeline() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(demo_model_path())
    config = Qwen3Config(**{**TINY, "vocab_size": len(tokenizer)}, num_hidden_layers=1)
    reference = build(config)
    model = on_tpu(reference)
    want = pipeline("text-generation", model=reference, tokenizer=tokenizer, device="cpu")
    texts = ["import", "The license of this"]
    with enable_tpu_kernels(model, prefill_chunk=64) as report:
        got = pipeline("text-generation", model=model, tokenizer=tokenizer)
        for text in texts:
            kwargs = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
            assert got(text, **kwargs) == want(text, **kwargs)
        assert not report.notes and all(call.is_kernel for call in attention(report.calls))


def test_a_peft_wrapper_is_looked_into(qwen3: Pair) -> None:
    import copy

    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(5)
    wrapped = get_peft_model(copy.deepcopy(qwen3.reference), lora).eval()
    model = copy.deepcopy(wrapped).to("tpu")
    ids = prompt(17)
    want = wrapped.generate(input_ids=ids, **GREEDY)
    report = enable_tpu_kernels(model, prefill_chunk=64)
    assert len(attention(report.swapped)) == 2
    assert torch.equal(model.generate(input_ids=ids, **GREEDY), want)
    assert not report.notes and all(call.is_kernel for call in attention(report.calls))


@pytest.mark.parametrize("first", ["the inner", "the outer"])
def test_a_model_that_shares_enabled_layers_is_refused(qwen3: Pair, first: str) -> None:
    one, other = qwen3.model.model, qwen3.model
    if first == "the outer":
        one, other = other, one
    with enable_tpu_kernels(one), pytest.raises(ModelStructureError, match="enabled already, through another model"):
        enable_tpu_kernels(other)
    enable_tpu_kernels(other).undo()

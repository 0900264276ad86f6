"""generate stays generate: modes, inputs and outputs of an enabled model against the plain call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    CompileConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    TextStreamer,
    pipeline,
)

from tests.support.models import TINY, Pair, build, generate_reference, left_padded, on_tpu, prompt
from tpu_kernels import StackError, emulator, enable_tpu_kernels
from tpu_kernels.demo import demo_model_path

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def test_sampling_with_a_seed_gives_the_reference_tokens(qwen3: Pair) -> None:
    ids = prompt(21, batch=3)
    sampling: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    torch.manual_seed(7)
    want = qwen3.reference.generate(ids, **sampling)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        torch.manual_seed(7)
        assert torch.equal(qwen3.model.generate(ids, **sampling), want)
        torch.manual_seed(8)
        assert not torch.equal(qwen3.model.generate(ids, **sampling), want)
        torch.manual_seed(7)
        want = qwen3.reference.generate(ids[:1], num_return_sequences=3, **sampling)
        torch.manual_seed(7)
        assert torch.equal(qwen3.model.generate(ids[:1], num_return_sequences=3, **sampling), want)
        assert not report.notes and all(call.is_kernel for call in report.calls)


def test_a_streamer_sees_every_token(qwen3: Pair) -> None:
    class Collect(TextStreamer):
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer, ids = Collect(), prompt(9)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64):
        out = qwen3.model.generate(ids, streamer=streamer, **GREEDY)
    assert streamer.seen == out[0].tolist() and streamer.ended


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


def test_a_returned_cache_can_be_continued(qwen3: Pair) -> None:
    ids, more = prompt(30), prompt(70, seed=3)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        first = qwen3.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, more), dim=1)
        second = qwen3.model.generate(whole, past_key_values=first.past_key_values, **GREEDY)
        assert not report.notes
    assert torch.equal(second, generate_reference(qwen3.reference, whole, 5)[0])


def test_a_cache_continued_at_an_odd_place_up_to_its_end(qwen3: Pair) -> None:
    ids = prompt(30)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        first = qwen3.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, prompt(210, seed=5)), dim=1)
        cache = first.past_key_values
        got = qwen3.model.generate(whole, past_key_values=cache, return_dict_in_generate=True, **GREEDY)
        runs = report.programs["prefill batch 1 tokens 64 cache 256"]
        assert runs == 1 + (256 - 34) // 64
        assert cache.get_max_length() == 256 and cache.get_seq_length() == 249
    assert torch.equal(got.sequences, generate_reference(qwen3.reference, whole, 5)[0])


def test_a_returned_cache_grows_to_the_next_bucket(qwen3: Pair) -> None:
    ids = prompt(30)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        first = qwen3.model.generate(ids, return_dict_in_generate=True, **GREEDY)
        whole = torch.cat((first.sequences, prompt(240, seed=6)), dim=1)
        cache = first.past_key_values
        got = qwen3.model.generate(whole, past_key_values=cache, **GREEDY)
        assert cache.get_max_length() == 512 and cache.get_seq_length() == whole.shape[1] + 4
        assert not report.notes
    assert torch.equal(got, generate_reference(qwen3.reference, whole, 5)[0])


@pytest.mark.parametrize("sample", [False, True], ids=["beam search", "beam sample"])
def test_beams(qwen3: Pair, sample: bool) -> None:
    ids, mask = left_padded([9, 30])
    kwargs: dict[str, Any] = {**GREEDY, "num_beams": 3, "num_return_sequences": 2, "do_sample": sample}
    torch.manual_seed(4)
    want = qwen3.reference.generate(ids, attention_mask=mask, **kwargs)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        torch.manual_seed(4)
        assert torch.equal(qwen3.model.generate(ids, attention_mask=mask, **kwargs), want)
        assert not report.notes and all(call.is_kernel for call in report.calls)


def test_warm_up_leaves_nothing_to_compile(qwen3: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        steps = report.warm_up(batch_sizes=[2, 1], max_lens=[100])
        assert [(step.batch_size, step.max_len, len(step.programs)) for step in steps] == [(1, 100, 2), (2, 100, 2)]
        assert all(step.seconds > 0 for step in steps) and "2/2" in capsys.readouterr().err
        before = emulator.compilations()
        for lengths in ([40], [7, 60]):
            ids, mask = left_padded(lengths)
            got = qwen3.model.generate(ids, attention_mask=mask, **GREEDY)
            want = generate_reference(qwen3.reference, ids[-1:, -lengths[-1] :], 5)[0]
            assert torch.equal(got[-1:, -lengths[-1] - 5 :], want)
        assert emulator.compilations() == before
        with pytest.raises(ValueError, match="batch sizes from 1 and lengths from 2, got 0 and 100"):
            report.warm_up([0], [100])
    with pytest.raises(StackError, match="not enabled"):
        report.warm_up()


def test_a_mask_with_a_hole_runs_the_fallback_and_is_counted_apart(qwen3: Pair) -> None:
    ids, whole = prompt(20), torch.ones(1, 20, dtype=torch.int64)
    hole = whole.clone()
    hole[:, 4:7] = 0
    want = {id(mask): qwen3.reference.generate(ids, attention_mask=mask, **GREEDY) for mask in (whole, hole)}
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        for mask in (whole, hole, whole):
            assert torch.equal(qwen3.model.generate(ids, attention_mask=mask, **GREEDY), want[id(mask)])
        steps = {(call.phase, call.is_kernel): call.steps for call in report.calls if "0" in call.path}
    assert steps == {("decode", True): 10, ("decode", False): 5, ("prefill", True): 2, ("prefill", False): 1}


def test_settings_that_are_not_used_are_said(qwen3: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        enable_tpu_kernels(qwen3.model, prefill_chunk=64)
        assert not caplog.records
        enable_tpu_kernels(qwen3.model, prefill_chunk=128)
        assert "enabled already; these arguments change nothing" in caplog.text
        qwen3.model.generate(prompt(5), prefill_chunk_size=32, **GREEDY)
        assert "prefill_chunk_size=32 was not used" in report.notes[0]


def test_without_compiling(qwen3: Pair) -> None:
    ids, mask = left_padded([30, 70])
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        first = qwen3.model.generate(ids, attention_mask=mask, disable_compile=True, **GREEDY)
        before = emulator.compilations()
        ids2, mask2 = left_padded([41, 52])
        second = qwen3.model.generate(ids2, attention_mask=mask2, disable_compile=True, **GREEDY)
        assert emulator.compilations() == before
        assert {(call.phase, call.steps, call.is_kernel) for call in report.calls} == {
            ("decode", 10, True),
            ("prefill", 3, True),
        }
        assert report.programs == {}
    for out, padded, lengths in ((first, ids, [30, 70]), (second, ids2, [41, 52])):
        for row, length in enumerate(lengths):
            want = generate_reference(qwen3.reference, padded[row : row + 1, -length:], 5)[0]
            assert torch.equal(out[row, -length - 5 :], want[0])


def test_inputs_on_the_tpu_come_back_there(qwen3: Pair) -> None:
    ids = prompt(33)
    want = generate_reference(qwen3.reference, ids, 5)[0]
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64):
        assert qwen3.model.generate(ids, **GREEDY).device.type == "cpu"
        before = emulator.compilations()
        got = qwen3.model.generate(ids.to("tpu"), attention_mask=torch.ones_like(ids).to("tpu"), **GREEDY)
        assert got.device.type == "tpu" and torch.equal(got.cpu(), want)
        assert emulator.compilations() == before
        full = qwen3.model.generate(input_ids=ids.to("tpu"), return_dict_in_generate=True, output_logits=True, **GREEDY)
        assert full.sequences.device.type == "tpu" and full.logits[0].device.type == "tpu"


def test_max_cache_len_of_the_call_prepares_a_longer_cache(qwen3: Pair) -> None:
    ids = prompt(12)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        qwen3.model.generate(ids, cache_implementation="static", max_cache_len=500, **GREEDY)
        assert set(report.programs) == {
            "prefill batch 1 tokens 64 cache 512",
            "decode batch 1 tokens 1 cache 512",
        }


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "dynamic"}, "cache_implementation='dynamic'"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ],
)
def test_other_modes_run_the_plain_way_and_say_so(qwen3: Pair, call: dict[str, Any], reason: str) -> None:
    ids = prompt(7)
    kwargs = {**GREEDY, **call}
    torch.manual_seed(3)
    want = qwen3.reference.generate(ids, **kwargs)
    with enable_tpu_kernels(qwen3.model) as report:
        torch.manual_seed(3)
        got = qwen3.model.generate(ids, **kwargs)
        assert report.notes == (f"generate ran the plain way: {reason} (1 x)",)
        assert reason in str(report)
    if call.get("return_dict_in_generate"):
        assert len(got.hidden_states) == len(want.hidden_states)
        got, want = got.sequences, want.sequences
    assert torch.equal(got, want)


def test_a_compile_config_keeps_fullgraph_and_nothing_that_torch_tpu_refuses(qwen3: Pair) -> None:
    ids = prompt(19)
    want = generate_reference(qwen3.reference, ids, 5)[0]
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        got = qwen3.model.generate(ids, compile_config=CompileConfig(fullgraph=True), **GREEDY)
        assert torch.equal(got, want) and len(report.programs) == 2 and not report.notes


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
        assert {call.reason.split(" (")[0] for call in report.calls} == {"gradients are wanted"}
        qwen3.model.train()
        try:
            with torch.no_grad():
                qwen3.model(ids)
            qwen3.model.generate(prompt(4), max_new_tokens=2, do_sample=False)
        finally:
            qwen3.model.eval()
        assert "the model is in training mode" in {call.reason for call in report.calls}
        assert "generate ran the plain way: the model is in training mode (1 x)" in report.notes
        assert not any(call.is_kernel for call in report.calls)


def test_direct_calls_are_right_by_kernel_or_fallback(qwen3: Pair) -> None:
    ids = prompt(128)
    matrix = torch.rand(1, 1, 128, 128, generator=torch.Generator().manual_seed(1)) > 0.5
    matrix = (matrix | torch.eye(128, dtype=torch.bool)) & torch.ones(128, 128, dtype=torch.bool).tril()
    right = torch.ones_like(ids)
    right[:, 100:] = 0
    with enable_tpu_kernels(qwen3.model) as report, torch.no_grad():
        for mask, kept in ((None, slice(None)), (matrix, slice(None)), (right, slice(0, 100))):
            want = qwen3.reference(ids, attention_mask=_additive(mask)).logits
            moved = None if mask is None else mask.to("tpu")
            got = qwen3.model(ids.to("tpu"), attention_mask=moved).logits.cpu()
            torch.testing.assert_close(got[:, kept], want[:, kept], atol=1e-3, rtol=0)
        by_kernel = {call.is_kernel: call.steps for call in report.calls if call.path.endswith("0.self_attn")}
        assert by_kernel == {True: 2, False: 1}
        reasons = {call.reason for call in report.calls if not call.is_kernel}
        assert reasons == {"the mask is not an interval of keys in every row"}


def test_a_graph_that_the_user_compiles_is_right(qwen3: Pair) -> None:
    ids = prompt(128)
    with enable_tpu_kernels(qwen3.model) as report, torch.no_grad():
        compiled = torch.compile(qwen3.model, backend="tpu", dynamic=False, fullgraph=True)
        got = compiled(ids.to("tpu")).logits.cpu()
        assert {(call.reason, call.steps) for call in report.calls} == {
            ("the mask is not an interval of keys in every row", 0)
        }
    torch.testing.assert_close(got, qwen3.reference(ids).logits, atol=1e-3, rtol=0)


def _additive(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The reference runs eager attention, which adds a 4-D mask to the scores."""
    if mask is None or mask.ndim == 2:
        return mask
    return torch.where(mask, 0.0, torch.finfo(torch.float32).min)


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
        assert not report.notes and all(call.is_kernel for call in report.calls)


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
    assert len(report.swapped) == 2
    assert torch.equal(model.generate(input_ids=ids, **GREEDY), want)
    assert not report.notes and all(call.is_kernel for call in report.calls)

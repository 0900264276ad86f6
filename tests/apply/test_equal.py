"""Enabled models generate the reference's tokens, from compiled graphs that one call pays for."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BambaConfig,
    Gemma2Config,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.models import TINY, Pair, attention, generate_reference, left_padded, pair, prompt
from tpu_kernels import emulator, enable_tpu_kernels
from tpu_kernels.harness.coverage.architectures import load_architectures

CONFIGS = {
    "qwen3": lambda: Qwen3Config(**TINY, num_hidden_layers=2, tie_word_embeddings=False),
    "mistral-window-16-tied": lambda: MistralConfig(
        **TINY, num_hidden_layers=2, sliding_window=16, tie_word_embeddings=True
    ),
    "gemma2-window-16": lambda: Gemma2Config(
        **TINY,
        num_hidden_layers=2,
        sliding_window=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
        query_pre_attn_scalar=8,
    ),
}
LENGTHS = [1, 2, 16, 17, 63, 64, 65, 66, 128, 129, 193, 200]
LONG = 40
BATCH = [7, 64, 1, 93]
NEW = 6


def logits_of(model: object, ids: torch.Tensor, mask: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    out = model.generate(  # type: ignore[attr-defined]
        ids,
        attention_mask=mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences, torch.stack(out.logits, dim=1)


@pytest.fixture(scope="module", params=CONFIGS)
def both(request: pytest.FixtureRequest) -> Pair:
    config: PreTrainedConfig = CONFIGS[request.param]()
    return pair(config)


def test_equal_at_every_length_without_a_compilation_after_the_first(both: Pair) -> None:
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        assert len(attention(report.swapped)) == 2 and not attention(report.kept)
        steps = {"decode": 0, "prefill": 0}
        compiled: dict[int, int] = {}
        # The last one generates past the windows and over the end of a chunk.
        for length, new in [(10, NEW), *((length, NEW) for length in LENGTHS), (LONG, 40)]:
            ids = prompt(length)
            tokens, logits = generate_reference(both.reference, ids, new)
            before = emulator.compilations()
            got_tokens, got_logits = logits_of(both.model, ids, torch.ones_like(ids), new)
            compiled[length] = emulator.compilations() - before
            assert torch.equal(got_tokens, tokens), f"prompt of {length}"
            torch.testing.assert_close(got_logits, logits, atol=1e-3, rtol=0, msg=lambda m, n=length: f"{n}: {m}")
            steps["decode"] += new
            steps["prefill"] += -(-(length - 1) // 64)
        compiled.pop(10)
        assert set(compiled.values()) == {0}, compiled
        assert {(call.path, call.phase): call.steps for call in attention(report.calls)} == {
            (entry.path, phase): count for entry in attention(report.swapped) for phase, count in steps.items()
        }
        assert all(call.is_kernel for call in attention(report.calls))
        assert len(report._session.log.programs) == 2, report.programs
        assert all(count == 1 for p in report._session.log.programs for count in p.traces.values())


def test_rows_of_a_left_padded_batch_equal_their_single_runs(both: Pair) -> None:
    ids, mask = left_padded(BATCH)
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        tokens, logits = logits_of(both.model, ids, mask, NEW)
        assert all(call.is_kernel for call in attention(report.calls))
    for row, length in enumerate(BATCH):
        want, want_logits = generate_reference(both.reference, ids[row : row + 1, -length:], NEW)
        assert torch.equal(tokens[row, -length - NEW :], want[0]), f"row {row}"
        torch.testing.assert_close(logits[row], want_logits[0], atol=1e-3, rtol=0)


def test_experts_decode_from_one_graph() -> None:
    sizes = {**TINY, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2}
    both = pair(Qwen3MoeConfig(**sizes))
    ids = prompt(20)
    tokens, logits = generate_reference(both.reference, ids, NEW)
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        got, got_logits = logits_of(both.model, ids, torch.ones_like(ids), NEW)
        assert all(count == 1 for p in report._session.log.programs for count in p.traces.values())
    assert torch.equal(got, tokens)
    torch.testing.assert_close(got_logits, logits, atol=1e-3, rtol=0)


def test_a_model_with_recurrent_layers_decodes_with_kernels() -> None:
    entry = load_architectures()["bamba"]
    both = pair(BambaConfig(**entry.arguments))
    ids, mask = left_padded([20, 33])
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        got, got_logits = logits_of(both.model, ids, mask, NEW)
        assert not report.notes
        assert {(call.phase, call.is_kernel, call.steps) for call in attention(report.calls)} == {
            ("prefill", True, 1),
            ("decode", True, NEW - 1),
        }
    for row, length in enumerate((20, 33)):
        tokens, logits = generate_reference(both.reference, ids[row : row + 1, -length:], NEW)
        assert torch.equal(got[row, -length - NEW :], tokens[0])
        torch.testing.assert_close(got_logits[row], logits[0], atol=1e-3, rtol=0)

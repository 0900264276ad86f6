"""In bfloat16 an enabled model is as near to the float32 reference as plain transformers is."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, LogitsProcessor, LogitsProcessorList, PreTrainedModel, Qwen3Config

from tests.support.models import TINY, attention, build, generate_reference, on_tpu, prompt
from tpu_kernels import enable_tpu_kernels
from tpu_kernels.specs.vocabulary import Policy

NEW = 12


class Teacher(LogitsProcessor):
    """Makes every step choose the reference's token."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[0, input_ids.shape[1]]] = 0
        return forced


def teacher_forced(model: PreTrainedModel, ids: torch.Tensor, tokens: torch.Tensor, eager: bool) -> torch.Tensor:
    """Raw logits `[new, vocab]` of each step when the reference's tokens are taken."""
    out = model.generate(
        ids,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        cache_implementation="static",
        disable_compile=eager,
        logits_processor=LogitsProcessorList([Teacher(tokens)]),
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert torch.equal(out.sequences, tokens)
    return torch.cat(out.logits)


@pytest.mark.parametrize(
    ("family", "layers", "policy", "eager"),
    [
        ("qwen3", 2, "auto", False),
        ("gemma2", 2, "auto", False),
        ("qwen3", 2, "always", False),
        ("qwen3", 20, "always", True),
    ],
    ids=["qwen3, attention", "gemma2, attention", "qwen3, every layer", "qwen3, every layer of 20 blocks, eager"],
)
def test_no_further_from_float32_than_plain_bfloat16(family: str, layers: int, policy: Policy, eager: bool) -> None:
    """Many blocks run eagerly: one program for each kind of layer, and not for each layer a part of a long graph."""
    sizes = {**TINY, "hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "num_hidden_layers": layers}
    if family == "qwen3":
        config = Qwen3Config(**sizes)
    else:
        config = Gemma2Config(**sizes, sliding_window=16, attn_logit_softcapping=5.0, query_pre_attn_scalar=16)
    reference = build(config)
    plain, enabled = on_tpu(reference, torch.bfloat16), on_tpu(reference, torch.bfloat16)
    report = enable_tpu_kernels(enabled, policy=policy, prefill_chunk=64)
    plain_error, our_error = [], []
    for length in (9, 70):
        ids = prompt(length)
        tokens, logits = generate_reference(reference, ids, NEW)
        ours = teacher_forced(enabled, ids, tokens, eager)
        plain_error.append(teacher_forced(plain, ids, tokens, eager) - logits[0])
        our_error.append(ours - logits[0])
        off = our_error[-1].abs().amax(dim=-1)
        top = logits[0].topk(2).values
        differs = ours.argmax(dim=-1) != logits[0].argmax(dim=-1)
        assert bool(((top[:, 0] - top[:, 1])[differs] < 2 * off[differs]).all())
    assert all(call.is_kernel for call in (report.calls if policy == "always" else attention(report.calls)))
    rms = [torch.cat(errors).square().mean().sqrt().item() for errors in (our_error, plain_error)]
    assert 0 < rms[0] <= 1.25 * rms[1], rms

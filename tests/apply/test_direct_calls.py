"""`model(**inputs)` of an enabled model, without generate: equal to the plain call, by kernel or by fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, MistralConfig, StaticCache

from tests.support.models import TINY, Pair, attention, pair, prompt
from tpu_kernels import enable_tpu_kernels
from tpu_kernels.harness.weights import biting_weights_


def _additive(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The reference runs eager attention, which adds a 4-D mask to the scores."""
    if mask is None or mask.ndim == 2:
        return mask
    return torch.where(mask, 0.0, torch.finfo(torch.float32).min)


@pytest.fixture(scope="module")
def mistral() -> Pair:
    """A window of 16, so that a lost mask shows."""
    return pair(MistralConfig(**TINY, num_hidden_layers=2, sliding_window=16))


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=0)


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
        by_kernel = {
            call.is_kernel: call.steps for call in attention(report.calls) if call.path.endswith("0.self_attn")
        }
        assert by_kernel == {True: 2, False: 1}
        reasons = {call.reason for call in attention(report.calls) if not call.is_kernel}
        assert reasons == {"the mask is not an interval of keys in every row"}


def test_a_graph_that_the_user_compiles_is_right(qwen3: Pair) -> None:
    ids = prompt(128)
    with enable_tpu_kernels(qwen3.model) as report, torch.no_grad():
        compiled = torch.compile(qwen3.model, backend="tpu", dynamic=False, fullgraph=True)
        got = compiled(ids.to("tpu")).logits.cpu()
        assert {(call.reason, call.steps) for call in attention(report.calls)} == {
            ("the mask is not an interval of keys in every row", 0)
        }
    torch.testing.assert_close(got, qwen3.reference(ids).logits, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_matrix_of_the_callers_own_over_a_cache(qwen3: Pair, kind: str) -> None:
    """Two calls with one cache; the second attends to every other key of the first."""
    ids = prompt(12)
    mask = torch.ones(1, 1, 4, 12, dtype=torch.bool).tril(8)
    mask[..., 1:8:2] = False
    mask = mask if kind == "bool" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    eager = mask if kind == "additive" else _additive(mask)
    with enable_tpu_kernels(qwen3.model) as report, torch.no_grad():
        want_cache, cache = DynamicCache(), DynamicCache()
        _close(
            qwen3.model(ids[:, :8].to("tpu"), past_key_values=cache).logits,
            qwen3.reference(ids[:, :8], past_key_values=want_cache).logits,
        )
        got = qwen3.model(ids[:, 8:].to("tpu"), attention_mask=mask.to("tpu"), past_key_values=cache).logits
        _close(got, qwen3.reference(ids[:, 8:], attention_mask=eager, past_key_values=want_cache).logits)
        assert "the mask is not an interval of keys in every row" in {call.reason for call in attention(report.calls)}


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_of_the_callers_own(mistral: Pair, kind: str) -> None:
    """Prefill and single tokens past the window, with left padding."""
    ids = prompt(30, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0

    def run(model: Any, device: str) -> list[torch.Tensor]:
        static = StaticCache(config=model.config, max_cache_len=128)
        cache = DynamicCache(config=model.config) if kind == "dynamic" else static
        logits = []
        for start, end in ((0, 24), *((at, at + 1) for at in range(24, 30))):
            positions = (mask[:, :end].cumsum(-1) - 1).clamp(min=0)[:, start:end]
            out = model(
                ids[:, start:end].to(device),
                attention_mask=mask[:, :end].to(device),
                position_ids=positions.to(device),
                past_key_values=cache,
            )
            logits.append(out.logits.cpu())
        return logits

    with enable_tpu_kernels(mistral.model) as report, torch.no_grad():
        got, want = run(mistral.model, "tpu"), run(mistral.reference, "cpu")
        assert attention(report.calls) and not report.notes
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one[0], other[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(got[0][1, 5:], want[0][1, 5:], atol=1e-3, rtol=0)
    for one, other in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(one[1], other[1], atol=1e-3, rtol=0)


def test_packed_sequences(mistral: Pair) -> None:
    """Positions that start again begin a sequence that must not see the one before."""
    ids = prompt(45)
    positions = torch.cat([torch.arange(20), torch.arange(25)])[None]
    with enable_tpu_kernels(mistral.model), torch.no_grad():
        got = mistral.model(ids.to("tpu"), position_ids=positions.to("tpu"), use_cache=False).logits
        _close(got, mistral.reference(ids, position_ids=positions, use_cache=False).logits)
        alone = mistral.reference(ids[:, 20:], use_cache=False).logits
        _close(got[:, 20:], alone)


def test_right_padding_past_the_window(mistral: Pair) -> None:
    ids = prompt(40, batch=2)
    mask = torch.ones_like(ids)
    mask[1, 29:] = 0
    with enable_tpu_kernels(mistral.model), torch.no_grad():
        got = mistral.model(ids.to("tpu"), attention_mask=mask.to("tpu")).logits
    _close(got[:1], mistral.reference(ids[:1]).logits)
    _close(got[1:, :29], mistral.reference(ids[1:, :29]).logits)


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder", "cross-attention"])
def test_models_that_are_no_decoders(kind: str) -> None:
    """Layers that see both ways are kept with the reason; what is causal gets the kernel; all is equal."""
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        BertConfig,
        BertForMaskedLM,
        BertLMHeadModel,
    )

    sizes: dict[str, Any] = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "encoder-decoder":
        half: dict[str, int] = {}
        for part in ("encoder", "decoder"):
            half |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 64}
        config: Any = BartConfig(**sizes, d_model=64, max_position_embeddings=64, decoder_start_token_id=2, **half)
        model_class: Any = BartForConditionalGeneration
    else:
        config = BertConfig(**sizes, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
        if kind == "cross-attention":
            config.is_decoder = config.add_cross_attention = True
        model_class = BertForMaskedLM if kind == "encoder" else BertLMHeadModel
    reference = biting_weights_(model_class(config).eval())
    model = model_class(config).eval()
    model.load_state_dict(reference.state_dict())
    model.to("tpu")
    ids = prompt(12, batch=2)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    extra: dict[str, torch.Tensor] = {}
    if kind == "encoder-decoder":
        extra["decoder_input_ids"] = prompt(6, batch=2, seed=1)
    if kind == "cross-attention":
        extra["encoder_hidden_states"] = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = reference(ids, attention_mask=mask, **extra).logits
        with enable_tpu_kernels(model) as report:
            got = model(ids.to("tpu"), attention_mask=mask.to("tpu"), **{k: v.to("tpu") for k, v in extra.items()})
            kept, swapped = (
                {entry.path: entry.reason for entry in attention(report.kept)},
                {e.path for e in attention(report.swapped)},
            )
            assert all("bidirectional" in reason for reason in kept.values())
    _close(got.logits[0], want[0])
    valid = slice(None) if kind == "encoder-decoder" else slice(0, 7)
    _close(got.logits[1, valid], want[1, valid])
    if kind == "encoder":
        assert len(kept) == 2 and not swapped
    if kind == "encoder-decoder":
        assert swapped == {"model.decoder.layers.0.self_attn"}
        assert set(kept) == {"model.encoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn"}
    if kind == "cross-attention":
        assert len(swapped) == 2 and all("crossattention" in path for path in kept)

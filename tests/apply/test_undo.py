"""What enabling touches, undo restores; what it does not own, it does not touch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.support.models import TINY, Pair, attention, generate_reference, prompt
from tpu_kernels import disable_tpu_kernels, enable_tpu_kernels
from tpu_kernels.apply.generation.shapes import probe_cache_shapes
from tpu_kernels.harness.weights import biting_weights_


def snapshot(model: torch.nn.Module) -> dict[str, Any]:
    """Identity of everything that hangs on each module's own dictionary, and its class."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        state[path] = type(module), type(module).__name__, getattr(module.forward, "__func__", module.forward)
        for name, value in vars(module).items():
            content = dict(value) if isinstance(value, dict) else None
            state[f"{path}:{name}"] = id(value), content
    return state


def test_undo_restores_identity_forward_hooks_class_names_and_config(qwen3: Pair) -> None:
    model = qwen3.model
    calls: list[int] = []
    handle = model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    config, implementation = model.config, model.config._attn_implementation
    before, text = snapshot(model), repr(model)
    report = enable_tpu_kernels(model, prefill_chunk=64)
    assert model.config is not config and config._attn_implementation == implementation
    assert repr(model) == text
    probed = snapshot(model)
    probe_cache_shapes(model)
    assert snapshot(model) == probed
    model.generate(prompt(5), max_new_tokens=2, do_sample=False, disable_compile=True)
    assert len(calls) == 3, "a hook of the user's own ran as often as there were forwards"
    report.undo()
    after = snapshot(model)
    handle.remove()
    assert after == before
    assert model.config is config and config._attn_implementation == implementation
    assert not report.enabled
    report.undo()


def test_edits_made_while_enabled_stay() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=1)
    model = biting_weights_(Qwen3ForCausalLM(config)).eval().to("tpu")
    with enable_tpu_kernels(model):
        model.resize_token_embeddings(140, mean_resizing=False)
        model.config.pad_token_id = 5
    assert model.config is config and config.vocab_size == 140 and config.pad_token_id == 5
    assert config._attn_implementation == "sdpa"


def test_disable_and_the_context_manager(qwen3: Pair) -> None:
    assert disable_tpu_kernels(qwen3.model) is False
    report = enable_tpu_kernels(qwen3.model)
    assert enable_tpu_kernels(qwen3.model) is report
    assert disable_tpu_kernels(qwen3.model) is True and not report.enabled
    with enable_tpu_kernels(qwen3.model) as second:
        assert second is not report and second.enabled
    assert not second.enabled
    assert disable_tpu_kernels(qwen3.model) is False


def test_an_error_inside_the_block_still_undoes(qwen3: Pair) -> None:
    with pytest.raises(RuntimeError, match="inside"), enable_tpu_kernels(qwen3.model) as report:
        raise RuntimeError("inside")
    assert not report.enabled


def test_a_second_model_of_the_same_config_is_bit_identical_throughout() -> None:
    config = Qwen3Config(**TINY, num_hidden_layers=2)
    first = biting_weights_(Qwen3ForCausalLM(config)).eval().to("tpu")
    second = biting_weights_(Qwen3ForCausalLM(config), seed=1).eval().to("tpu")
    assert first.config is second.config
    ids = prompt(9).to("tpu")

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return second(ids).logits.cpu()

    before, state = logits(), snapshot(second)
    with enable_tpu_kernels(first, prefill_chunk=64):
        first.generate(prompt(9), max_new_tokens=2, do_sample=False)
        assert torch.equal(logits(), before)
        assert snapshot(second) == state
        assert second.config._attn_implementation == "sdpa"
    assert torch.equal(logits(), before) and snapshot(second) == state


def test_a_deep_copy_is_enabled_on_its_own(qwen3: Pair) -> None:
    ids = prompt(11)
    want = generate_reference(qwen3.reference, ids, 3)[0]
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        other = copy.deepcopy(qwen3.model)
        assert torch.equal(other.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False), want)
        assert not attention(report.calls), "the copy's calls were logged for the original"
        assert disable_tpu_kernels(other) and report.enabled
        assert "generate" not in vars(other) and "generate" in vars(qwen3.model)
    assert torch.equal(other.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False), want)


def test_what_is_saved_knows_nothing_of_us(qwen3: Pair, tmp_path: Path) -> None:
    qwen3.model.save_pretrained(tmp_path / "plain")
    with enable_tpu_kernels(qwen3.model):
        qwen3.model.save_pretrained(tmp_path / "enabled")
    names = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert sorted(path.name for path in (tmp_path / "enabled").iterdir()) == names
    for name in names:
        assert (tmp_path / "enabled" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "enabled")
    assert reloaded.config._attn_implementation == "sdpa"

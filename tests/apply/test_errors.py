"""Bad input: the text of each error, and the model left as it was."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM, StaticCache

from tests.support.models import TINY, Pair, attention, prompt
from tpu_kernels import (
    CacheTooLargeError,
    CacheTooSmallError,
    KernelLoadError,
    KernelRejectedError,
    KernelSpec,
    ModelNotOnTpuError,
    ModelStructureError,
    NoMatchError,
    SpecError,
    enable_tpu_kernels,
)
from tpu_kernels.specs import BundledSource, Dimension, PathSource, Requires


def spec(**changes: object) -> KernelSpec:
    fields: dict[str, object] = {
        "name": "attention/strict",
        "op": "attention",
        "description": "for tests",
        "source": BundledSource(name="static-attention"),
        "function": "static_attention",
        "requires": Requires(dtypes=("bfloat16",), head_dim=Dimension(multiple_of=128)),
    }
    return KernelSpec(**{**fields, **changes})


def test_a_model_on_the_cpu(qwen3: Pair) -> None:
    with pytest.raises(ModelNotOnTpuError) as error:
        enable_tpu_kernels(qwen3.reference)
    text = str(error.value)
    assert "Qwen3ForCausalLM is not on a TPU" in text and "parameters on cpu" in text
    assert 'from_pretrained(..., device_map="tpu")' in text and "tpu-kernels emulate" in text


def test_a_model_that_device_map_auto_left_on_the_cpu(tmp_path: object) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**TINY, num_hidden_layers=1))
    model.save_pretrained(tmp_path)
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path, device_map="auto")
    with pytest.raises(ModelNotOnTpuError, match='device_map="auto" puts a model on the CPU without a word'):
        enable_tpu_kernels(loaded)


def test_no_transformers_model_and_several() -> None:
    with pytest.raises(ModelStructureError, match=r"found no transformers models[\s\S]*Linear"):
        enable_tpu_kernels(torch.nn.Linear(2, 2))
    config = Qwen3Config(**TINY, num_hidden_layers=1)
    two = torch.nn.ModuleList([Qwen3ForCausalLM(config), Qwen3ForCausalLM(config)])
    with pytest.raises(ModelStructureError, match=r"found 2 transformers models[\s\S]*Qwen3ForCausalLM"):
        enable_tpu_kernels(two)


def test_no_layer_matches() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1))
    model.backbone.layers[0].norm = model.backbone.norm_f = torch.nn.Identity()
    model.to("tpu")
    with pytest.raises(NoMatchError, match="no layer of MambaForCausalLM matches any kernel spec"):
        enable_tpu_kernels(model)


def test_rejected_with_on_reject_error(qwen3: Pair) -> None:
    config = Qwen3Config(**{**TINY, "head_dim": 8}, num_hidden_layers=1)
    model = Qwen3ForCausalLM(config).eval().to("tpu")
    before = dict(vars(model))
    with pytest.raises(KernelRejectedError) as error:
        enable_tpu_kernels(model, on_reject="error")
    text = str(error.value)
    assert "`attention/static-attention` cannot replace `model.layers.0.self_attn` (Qwen3Attention) on v5e" in text
    assert "head_dim >= 16" in text and "static_attention.yaml:" in text and "head_dim = 8" in text
    assert 'on_reject="fallback"' in text and "tpu-kernels plan MODEL" in text
    assert vars(model) == before
    report = enable_tpu_kernels(model)
    assert [entry.reason for entry in attention(report.kept)] == [
        "attention/static-attention needs head_dim >= 16, got head_dim = 8; "
        "attention/static-attention needs value_head_dim >= 16, got value_head_dim = 8"
    ]
    ids = prompt(5)
    plain = model.generate(ids, max_new_tokens=3, do_sample=False)
    report.undo()
    assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), plain)


def test_a_kernel_that_does_not_load(qwen3: Pair, tmp_path: object) -> None:
    loose = Requires(dtypes=("float32",), features=("causal", "left_padding", "grouped_heads"))
    missing = spec(source=PathSource(path=str(tmp_path)), requires=loose)
    with pytest.raises(KernelLoadError, match=r"no TPU build[\s\S]*metadata.json[\s\S]*no folder"):
        enable_tpu_kernels(qwen3.model, specs=[missing], on_reject="error")
    assert "generate" not in vars(qwen3.model)
    with enable_tpu_kernels(qwen3.model, specs=[missing]) as report:
        assert len(attention(report.kept)) == 2 and "no TPU build" in attention(report.kept)[0].reason
    nameless = spec(function="no_such_function", requires=loose)
    with pytest.raises(KernelLoadError, match=r"no function `no_such_function`[\s\S]*static_attention"):
        enable_tpu_kernels(qwen3.model, specs=[nameless], on_reject="error")


def test_arguments(qwen3: Pair) -> None:
    for kwargs, text in (
        ({"policy": "sometimes"}, "policy must be one of auto, always, got 'sometimes'"),
        ({"on_reject": "ignore"}, "on_reject must be"),
        ({"prefill_chunk": 48}, "prefill_chunk must be a power of two from 8 to 1024, got 48"),
        ({"max_cache_len": 0}, "max_cache_len must be at least 1, got 0"),
        ({"specs": ["nowhere.yaml"]}, "nowhere.yaml"),
    ):
        with pytest.raises((ValueError, SpecError), match=text):
            enable_tpu_kernels(qwen3.model, **kwargs)
        assert "generate" not in vars(qwen3.model)


def test_a_prompt_longer_than_the_cache_asked_for(qwen3: Pair) -> None:
    with enable_tpu_kernels(qwen3.model, max_cache_len=128, prefill_chunk=64):
        with pytest.raises(CacheTooSmallError) as error:
            qwen3.model.generate(prompt(125), max_new_tokens=8, do_sample=False)
        text = str(error.value)
        assert "132 positions" in text and "max_cache_len = 128" in text and "lower max_new_tokens" in text
        assert qwen3.model.generate(prompt(125), max_new_tokens=4, do_sample=False).shape == (1, 129)


def test_a_cache_of_the_callers_own_that_is_too_short(qwen3: Pair) -> None:
    cache = StaticCache(config=qwen3.model.config, max_cache_len=8)
    with (
        enable_tpu_kernels(qwen3.model),
        pytest.raises(CacheTooSmallError, match=r"cache passed to generate is too short[\s\S]*StaticCache of 8"),
    ):
        qwen3.model.generate(prompt(6), max_new_tokens=8, past_key_values=cache)


def test_a_cache_that_does_not_fit_the_chip(qwen3: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_CHIP", "v5e")
    with enable_tpu_kernels(qwen3.model), pytest.raises(CacheTooLargeError) as error:
        qwen3.model.generate(prompt(4, batch=64), max_new_tokens=1_000_000, do_sample=False)
    text = str(error.value)
    assert "does not fit the memory of a v5e; nothing was allocated" in text and "batch 64" in text
    assert "positions fit" in text


def test_an_unknown_chip(qwen3: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_kernels import StackError

    monkeypatch.setenv("TPU_KERNELS_CHIP", "v99")
    with pytest.raises(StackError, match=r"TPU_KERNELS_CHIP names a chip that is not known[\s\S]*v99"):
        enable_tpu_kernels(qwen3.model)


def test_disabled_by_the_environment(qwen3: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_DISABLE", "1")
    report = enable_tpu_kernels(qwen3.model)
    assert "TPU_KERNELS_DISABLE is set: nothing was enabled" in str(report)
    assert not report.enabled and "generate" not in vars(qwen3.model)
    report.undo()


def test_a_dynamic_cache_goes_the_plain_way(qwen3: Pair) -> None:
    ids = prompt(6)
    want = qwen3.reference.generate(ids, max_new_tokens=3, do_sample=False)
    with enable_tpu_kernels(qwen3.model) as report:
        cache = DynamicCache(config=qwen3.model.config)
        got = qwen3.model.generate(ids, max_new_tokens=3, do_sample=False, past_key_values=cache)
        assert torch.equal(got, want)
        assert report.notes == ("generate ran the plain way: a cache of the caller's own (DynamicCache) (1 x)",)


def test_a_generation_that_is_not_known_gets_the_default(
    qwen3: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tpu_kernels.apply.enable.current_chip", lambda: None)
    with enable_tpu_kernels(qwen3.model) as report:
        assert len(attention(report.swapped)) == 2
    assert [record.getMessage() for record in caplog.records if record.name == "tpu_kernels"] == [
        "the generation of this TPU is not known: kernels take their default block sizes"
    ]

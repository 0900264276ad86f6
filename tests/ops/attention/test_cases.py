from __future__ import annotations

import pytest
from transformers import (
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
)

from tpu_kernels.ops.attention.cases import CASES, MODELS, SMALL_CASES, case
from tpu_kernels.ops.attention.contract import FEATURES, validate_call


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in (*CASES, *SMALL_CASES)]
    assert len(set(names)) == len(names)
    assert all(case(name).name == name for name in names)
    with pytest.raises(KeyError, match=r"qwen3-0\.6b/decode"):
        case("qwen4/decode")


def test_every_model_has_a_decode_step_and_a_prefill_chunk_in_both_sizes() -> None:
    for model in MODELS:
        for phase in ("decode", "prefill"):
            full, small = case(f"{model.name}/{phase}"), case(f"{model.name}/{phase}/small")
            for one in (full, small):
                assert one.shape.is_decode == (phase == "decode")
                assert one.shape.group == model.shape.group
                assert (one.shape.key_dim, one.shape.value_dim) == (model.shape.key_dim, model.shape.value_dim)
            assert small.shape.length < full.shape.length
            assert full.window is None or small.window <= small.shape.length // 2


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_together_the_cases_use_every_feature(phase: str) -> None:
    used = set().union(*(one.features for one in CASES if phase in one.name))
    assert used == set(FEATURES)


@pytest.mark.parametrize("one", [*CASES, *SMALL_CASES], ids=lambda one: one.name)
def test_cases_obey_the_contract(one) -> None:
    shape = one.shape
    call = validate_call(
        query=shape.query_shape,
        key=shape.key_shape,
        value=shape.value_shape,
        bounds=shape.bounds_shape,
        sinks=(shape.query_heads,) if one.sinks else None,
        softcap=one.softcap,
    )
    assert call == shape


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mistral-7b", MistralConfig()),
        ("gemma-2-2b", Gemma2Config()),
        ("gpt-oss-20b", GptOssConfig()),
        ("falcon-7b", FalconConfig()),
        ("phi-3-mini", Phi3Config()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_those_of_configs_whose_defaults_are_that_model(name: str, config: PretrainedConfig) -> None:
    one = case(f"{name}/decode")
    assert one.shape.query_heads == config.num_attention_heads
    kv_heads = 1 if getattr(config, "multi_query", False) else config.num_key_value_heads
    assert one.shape.kv_heads == kv_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert one.shape.key_dim == head_dim
    assert one.softcap == getattr(config, "attn_logit_softcapping", None)
    if name in ("mistral-7b", "gemma-2-2b", "gpt-oss-20b"):
        assert one.window == config.sliding_window
    if hasattr(config, "query_pre_attn_scalar"):
        assert one.scale == config.query_pre_attn_scalar**-0.5


def test_gemma_3_scales_as_its_config_says() -> None:
    assert case("gemma-3-1b/decode").scale == Gemma3TextConfig().query_pre_attn_scalar ** -0.5

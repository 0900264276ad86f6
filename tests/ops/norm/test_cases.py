from __future__ import annotations

import pytest
from transformers import (
    CohereConfig,
    Gemma2Config,
    GptOssConfig,
    Llama4TextConfig,
    OlmoConfig,
    PhiConfig,
    PretrainedConfig,
)

from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.norm.cases import CASES, MODELS, REPRESENTATIVES, SMALL_CASES, case
from tpu_kernels.ops.norm.contract import FEATURES, ORDERS, validate_call


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in (*CASES, *SMALL_CASES)]
    assert len(set(names)) == len(names)
    assert all(case(name).name == name for name in names)
    assert set(REPRESENTATIVES) <= {model.name for model in MODELS}
    with pytest.raises(KeyError, match=r"qwen3-0\.6b/decode"):
        case("qwen4/decode")


def test_every_model_has_a_decode_step_and_a_prefill_chunk_in_both_sizes() -> None:
    for model in MODELS:
        for phase in ("decode", "prefill"):
            full, small = case(f"{model.name}/{phase}"), case(f"{model.name}/{phase}/small")
            assert (full.tokens == 1) == (small.tokens == 1) == (phase == "decode")
            assert full.keywords == small.keywords == model.keywords
            assert full.features == small.features
            assert small.needed_bytes("float32") < full.needed_bytes("float32")


def test_together_the_cases_use_every_feature_and_order() -> None:
    assert set().union(*(one.features for one in CASES)) == set(FEATURES)
    assert {one.order for one in CASES} == set(ORDERS)


@pytest.mark.parametrize("one", [*CASES, *SMALL_CASES], ids=lambda one: one.name)
def test_cases_obey_the_contract_and_the_protocol(one) -> None:
    shaped: OpCase = one
    x, weight, bias = shaped.arguments("bfloat16")
    call = validate_call(
        x=x[0],
        weight=weight and weight[0],
        bias=bias and bias[0],
        center=one.center,
        offset=one.offset,
        order=one.order,
        dtypes=(x[1], weight and weight[1], bias and bias[1]),
    )
    assert call.hidden == one.hidden == shaped.sizes["hidden"]
    assert call.tokens * (call.heads or 1) == shaped.sizes["tokens"]
    assert call.heads == (one.heads if one.weight_by_head else None)
    assert (shaped.function, shaped.needed_flops(), dict(shaped.steering())) == ("norm", 0, {})


def test_bytes_are_those_of_the_arguments_and_the_result() -> None:
    assert case("phi-2/prefill").needed_bytes("bfloat16") == 2 * (2 * 256 * 2560 + 2 * 2560)
    assert case("llama-4-scout-query/decode").needed_bytes("float32") == 4 * 2 * 4 * 40 * 128


def test_another_size() -> None:
    assert case("qwen3-0.6b-query/decode").resized(batch=2, tokens=7).shape == (2, 7, 16, 128)
    assert case("phi-2/decode").resized() == case("phi-2/decode")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gpt-oss-20b", GptOssConfig()),
        ("phi-2", PhiConfig(hidden_size=2560)),
        ("olmo-7b", OlmoConfig()),
        ("command-r", CohereConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_those_of_configs_whose_defaults_are_that_model(name: str, config: PretrainedConfig) -> None:
    one = case(f"{name}/decode")
    assert one.hidden == config.hidden_size
    given = [getattr(config, key) for key in ("rms_norm_eps", "layer_norm_eps") if hasattr(config, key)]
    assert one.eps == (given[0] if given else 1e-5)


def test_heads_are_those_of_configs() -> None:
    scout = Llama4TextConfig()
    query = case("llama-4-scout-query/prefill")
    assert (query.heads, query.hidden, query.eps) == (scout.num_attention_heads, scout.head_dim, scout.rms_norm_eps)
    assert case("gemma-2-9b/decode").eps == Gemma2Config().rms_norm_eps

from __future__ import annotations

import pytest
from transformers import (
    Gemma2Config,
    Glm4Config,
    GPTNeoXConfig,
    GptOssConfig,
    Llama4TextConfig,
    Phi3Config,
    PretrainedConfig,
)

from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.rotary.cases import CASES, MODELS, REPRESENTATIVES, SMALL_CASES, case
from tpu_kernels.ops.rotary.contract import FEATURES, validate_call


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
            assert (full.positions == 1) == (small.positions == 1) == (phase == "decode")
            assert full.features == small.features == model.features
            assert small.needed_bytes("float32") < full.needed_bytes("float32")


def test_together_the_cases_use_every_feature() -> None:
    assert set().union(*(one.features for one in CASES)) == set(FEATURES)


@pytest.mark.parametrize("one", [*CASES, *SMALL_CASES], ids=lambda one: one.name)
def test_cases_obey_the_contract_and_the_protocol(one) -> None:
    shaped: OpCase = one
    x, cos, sin = shaped.arguments("bfloat16")
    call = validate_call(
        x=x[0], cos=cos[0], sin=sin[0], layout=one.layout, rounding=one.rounding, dtypes=(x[1], cos[1], sin[1])
    )
    assert (call.heads, call.head_dim, call.rotary_dim) == (one.heads, one.head_dim, one.rotary_dim)
    assert shaped.sizes["tokens"] == call.batch * call.positions
    assert (shaped.function, shaped.needed_flops(), dict(shaped.steering())) == ("rotary", 0, {})


def test_bytes_are_those_of_the_arguments_and_the_result() -> None:
    assert case("phi-2/decode").needed_bytes("bfloat16") == 4 * 2 * (2 * 32 * 80 + 2 * 32)
    assert case("olmo-2-7b/prefill").needed_bytes("bfloat16") == 256 * 128 * (2 * 32 * 2 + 2 * 4)


def test_another_size() -> None:
    assert case("phi-2/decode").resized(batch=2, tokens=7).shape == (2, 32, 7, 80)
    assert case("phi-2/decode").resized() == case("phi-2/decode")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gemma-2-9b", Gemma2Config(num_attention_heads=16)),
        ("gpt-oss-20b", GptOssConfig()),
        ("phi-3-mini", Phi3Config()),
        ("gpt-neox-20b", GPTNeoXConfig()),
        ("glm-4-9b", Glm4Config()),
        ("llama-4-scout", Llama4TextConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_those_of_configs_whose_defaults_are_that_model(name: str, config: PretrainedConfig) -> None:
    one = case(f"{name}/decode")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert (one.heads, one.head_dim) == (config.num_attention_heads, head_dim)
    parameters = getattr(config, "rope_parameters", None) or {}
    share = parameters.get("partial_rotary_factor", 1.0)
    assert one.rotary_dim == int(head_dim * share)

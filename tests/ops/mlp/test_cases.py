from __future__ import annotations

import pytest
from transformers import GPT2Config, OPTConfig, Phi3Config, PretrainedConfig, Starcoder2Config

from tpu_kernels.ops.mlp.cases import CASES, MODELS, REPRESENTATIVES, SMALL_CASES, MlpCase, case
from tpu_kernels.ops.mlp.contract import validate_gated, validate_two_layer

EVERY = [*CASES, *SMALL_CASES]


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in EVERY]
    assert len(set(names)) == len(names)
    assert all(case(name).name == name for name in names)
    assert set(REPRESENTATIVES) <= {model.name for model in MODELS}
    with pytest.raises(KeyError, match=r"qwen3-0\.6b/decode"):
        case("qwen4/decode")


def test_every_model_has_its_phases_in_both_sizes() -> None:
    for model in MODELS:
        for phase, tokens in (("decode", 1), ("decode-8", 8), ("prefill", 256)):
            full, small = case(f"{model.name}/{phase}"), case(f"{model.name}/{phase}/small")
            assert full.shape.tokens == tokens
            assert full.is_decode == small.is_decode == phase.startswith("decode")
            for width in ("hidden", "intermediate"):
                assert full.sizes[width] == model.sizes[width] > small.sizes[width]
                assert full.sizes[width] % 128 == small.sizes[width] % 128


def test_together_the_cases_use_the_features_of_layers() -> None:
    used = set().union(*(one.features for one in CASES))
    assert used >= {"gated", "two_layer", "fused_gate_up", "bias", "transposed_weights", "silu", "gelu_tanh", "relu2"}


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_cases_obey_the_contract(one: MlpCase) -> None:
    shapes = [None if argument is None else argument[0] for argument in one.arguments("bfloat16")]
    if one.gated:
        names = ("x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        call = validate_gated(**dict(zip(names, shapes, strict=True)), activation=one.activation)
    else:
        names = ("x", "up", "down", "up_bias", "down_bias")
        call = validate_two_layer(
            **dict(zip(names, shapes, strict=True)), activation=one.activation, transposed=one.transposed
        )
    assert call == one.shape


def test_bytes_and_products() -> None:
    gated = case("qwen3-8b/decode-8")
    weights = 3 * 4096 * 12288
    assert gated.needed_bytes("bfloat16") == 2 * (weights + 8 * 2 * 4096)
    assert gated.needed_flops() == 2 * 8 * weights
    plain = case("gpt2/decode")
    assert plain.needed_bytes("float32") == 4 * (2 * 768 * 3072 + 3072 + 768 + 2 * 768)
    assert plain.needed_flops() == 2 * 2 * 768 * 3072


def test_other_numbers_of_rows() -> None:
    assert case("qwen3-8b/decode").resized(tokens=5).shape.lead == (5, 1)
    assert case("qwen3-8b/prefill").resized(tokens=5).shape.lead == (1, 5)
    assert case("qwen3-8b/prefill").resized() == case("qwen3-8b/prefill")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("phi-3-mini", Phi3Config()),
        ("gpt2", GPT2Config()),
        ("starcoder2-3b", Starcoder2Config()),
        ("opt-125m", OPTConfig()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_those_of_configs_whose_defaults_are_that_model(name: str, config: PretrainedConfig) -> None:
    sizes = case(f"{name}/decode").sizes
    assert sizes["hidden"] == config.hidden_size
    inner = getattr(config, "intermediate_size", None) or getattr(config, "ffn_dim", None) or 4 * config.hidden_size
    assert sizes["intermediate"] == inner
    theirs = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    hidden_act = getattr(config, "hidden_act", None) or config.activation_function
    assert case(f"{name}/decode").activation == theirs.get(hidden_act, hidden_act)

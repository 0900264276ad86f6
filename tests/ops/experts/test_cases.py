from __future__ import annotations

import pytest
from transformers import GptOssConfig, MixtralConfig, Qwen3MoeConfig

from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.experts.cases import CASES, MODELS, REPRESENTATIVES, SMALL_CASES, ExpertsCase, case, routing
from tpu_kernels.ops.experts.contract import validate_call
from tpu_kernels.specs.vocabulary import FEATURES

LAYOUTS = {"gated", "two_layer", "bias", "transposed_weights", "interleaved", "clamp"}


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in (*CASES, *SMALL_CASES)]
    assert len(set(names)) == len(names)
    assert all(case(name).name == name for name in names)
    assert set(REPRESENTATIVES) <= {model.name for model in MODELS}
    with pytest.raises(KeyError, match="mixtral-8x7b/decode"):
        case("mixtral/decode")


@pytest.mark.parametrize("one", [*CASES, *SMALL_CASES], ids=lambda one: one.name)
def test_cases_obey_the_contract(one: ExpertsCase) -> None:
    as_protocol: OpCase = one
    hidden, indices, weights, gate_up, down, up_bias, down_bias = as_protocol.arguments("bfloat16")
    call = validate_call(
        hidden=hidden[0],
        indices=indices[0],
        weights=weights[0],
        gate_up=gate_up[0],
        down=down[0],
        gate_up_bias=up_bias and up_bias[0],
        down_bias=down_bias and down_bias[0],
        dtypes=(hidden[1], gate_up[1], down[1]),
        indices_dtype=indices[1],
        weights_dtype=weights[1],
        **{name: value for name, value in one.keywords.items() if name not in ("activation", "up_offset")},
    )
    assert call == one.shape
    rows = as_protocol.steering()[1]
    assert (len(rows), len(rows[0])) == one.shape.routing_shape
    assert all(len(set(row)) == len(row) and 0 <= min(row) <= max(row) < one.shape.num_experts for row in rows)


def test_small_cases_are_the_same_layers() -> None:
    for full, small in zip(CASES, SMALL_CASES, strict=True):
        assert small.name == f"{full.name}/small"
        assert small.features == full.features
        for name in ("hidden", "intermediate"):
            wide, narrow = getattr(full.shape, name), getattr(small.shape, name)
            assert narrow < wide
            assert (narrow % 128 == 0) == (wide % 128 == 0)
        assert small.weight_bytes("float32") < 2**23


def test_together_the_cases_use_every_layout() -> None:
    used = set().union(*(one.features for one in CASES))
    assert LAYOUTS <= used <= set(FEATURES["experts"])


@pytest.mark.parametrize(
    ("name", "config", "intermediate", "experts"),
    [
        ("mixtral-8x7b", MixtralConfig(), "intermediate_size", "num_local_experts"),
        ("gpt-oss-20b", GptOssConfig(num_local_experts=32), "intermediate_size", "num_local_experts"),
        ("qwen3-30b-a3b", Qwen3MoeConfig(), "moe_intermediate_size", "num_experts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_are_those_of_configs_whose_defaults_are_that_model(name, config, intermediate, experts) -> None:
    shape = case(f"{name}/decode").shape
    assert shape.hidden == config.hidden_size
    assert shape.intermediate == getattr(config, intermediate)
    assert shape.num_experts == getattr(config, experts)
    assert shape.top_k == config.num_experts_per_tok


def test_bytes_and_flops_by_hand() -> None:
    one = case("mixtral-8x7b/decode").resized(tokens=1)
    assert one.used_experts == 2
    assert one.weight_bytes("bfloat16") == 2 * 3 * 4096 * 14336 * 2
    assert one.needed_bytes("bfloat16") == one.weight_bytes("bfloat16") + 2 * 4096 * 2 + 2 * (4 + 2)
    assert one.needed_flops() == 2 * 2 * 3 * 4096 * 14336
    with pytest.raises(ValueError, match="1 or more"):
        one.resized(tokens=0)


def test_routing_is_the_same_everywhere_and_spread() -> None:
    assert routing(3, 8, 2) == ((1, 4), (6, 0), (1, 5))
    counts = [sum(row.count(expert) for row in routing(512, 128, 8)) for expert in range(128)]
    assert min(counts) > 10
    assert max(counts) < 60

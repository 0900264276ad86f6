"""The reference against transformers: its experts of several models, its two functions, and a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig, MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from tpu_kernels.ops.experts.baselines import batched_mm, grouped_mm
from tpu_kernels.ops.experts.cases import SMALL_CASES
from tpu_kernels.ops.experts.reference import experts_reference, gate
from tpu_kernels.ops.experts.suite import case_probe


@pytest.mark.parametrize("function", [batched_mm, grouped_mm])
@pytest.mark.parametrize("one", SMALL_CASES, ids=lambda one: one.name)
def test_equals_the_functions_of_transformers(one, function) -> None:
    probe = case_probe(one)
    wanted = function(*probe.arguments, **probe.keywords)
    torch.testing.assert_close(experts_reference(*probe.arguments, **probe.keywords), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("one", SMALL_CASES, ids=lambda one: one.name)
def test_in_bfloat16_it_rounds_where_transformers_does(one) -> None:
    """Equal numbers, not near ones; a weight's product with a float32 weight is float32 in both."""
    probe = case_probe(one, torch.bfloat16)
    wanted = grouped_mm(*probe.arguments, **probe.keywords)
    got = experts_reference(*probe.arguments, **probe.keywords)
    assert float((got != wanted).double().mean()) < 0.02


def filled(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    module.config._experts_implementation = "eager"
    return module


@pytest.mark.parametrize("of", ["mixtral", "gpt-oss"])
def test_equals_the_own_loop_of_a_model(of: str) -> None:
    if of == "mixtral":
        config = MixtralConfig(hidden_size=32, intermediate_size=24, num_local_experts=5)
        module, keywords = filled(MixtralExperts(config)), {"activation": "silu"}
        biases: tuple[torch.Tensor, ...] = ()
    else:
        config = GptOssConfig(hidden_size=32, intermediate_size=24, num_local_experts=5)
        module = filled(GptOssExperts(config))
        keywords = {
            "activation": "quick_gelu",
            "transposed": True,
            "interleaved": True,
            "limit": 7.0,
            "up_offset": 1.0,
        }
        biases = (module.gate_up_proj_bias, module.down_proj_bias)
    hidden, weights = torch.randn(9, 32) * 3, torch.rand(9, 2)
    indices = torch.stack([torch.randperm(5)[:2] for _ in range(9)])
    with torch.no_grad():
        wanted = module(hidden, indices, weights)
        got = experts_reference(hidden, indices, weights, module.gate_up_proj, module.down_proj, *biases, **keywords)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 3),
    interleaved=st.booleans(),
    limit=st.sampled_from([None, 0.5]),
    up_offset=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_equals_a_loop_over_tokens_and_experts(tokens, interleaved, limit, up_offset, seed) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    hidden, weights, first, second = normal(tokens, 3), normal(tokens, 2), normal(2, 4, 3), normal(2, 3, 2)
    indices = torch.randint(0, 4, (tokens, 2), generator=generator)
    got = experts_reference(
        hidden,
        indices,
        weights,
        first,
        second,
        activation="relu",
        interleaved=interleaved,
        limit=limit,
        up_offset=up_offset,
    )
    for token in range(tokens):
        wanted = [0.0] * 3
        for place in range(2):
            expert = int(indices[token, place])
            if expert >= 2:
                continue
            product = [math.fsum((hidden[token] * row).tolist()) for row in first[expert]]
            pairs = [(product[0], product[1]), (product[2], product[3])]
            if not interleaved:
                pairs = [(product[0], product[2]), (product[1], product[3])]
            act = []
            for one, up in pairs:
                if limit is not None:
                    one, up = min(one, limit), max(-limit, min(up, limit))
                act.append(max(one, 0.0) * (up + up_offset))
            for at in range(3):
                wanted[at] += float(weights[token, place]) * sum(
                    float(second[expert, at, inner]) * act[inner] for inner in range(2)
                )
        assert got[token].tolist() == pytest.approx(wanted, abs=1e-12)


def test_roundings_of_the_gate() -> None:
    product = torch.tensor([[1.0703125, 1.28125]], dtype=torch.bfloat16)
    exact = torch.nn.functional.silu(product[0, 0].double()) * product[0, 1].double()
    each, last = (gate(product, activation="silu", rounding=rounding).double() for rounding in ("each", "last"))
    assert float(last) == float(exact.to(torch.bfloat16))
    rounded = torch.nn.functional.silu(product[0, 0].double()).to(torch.bfloat16) * product[0, 1]
    assert float(each) == float(rounded)


def test_indices_of_no_expert_contribute_nothing_not_even_a_bias() -> None:
    hidden, gate_up, down = torch.randn(2, 4), torch.randn(3, 4, 4), torch.randn(3, 4, 2)
    biases = torch.ones(3, 4), torch.ones(3, 4)
    indices = torch.tensor([[3, 7], [-1, 0]])
    got = experts_reference(hidden, indices, torch.ones(2, 2), gate_up, down, *biases, activation="silu")
    assert not bool(got[0].any())
    alone = experts_reference(hidden[1:], indices[1:, 1:], torch.ones(1, 1), gate_up, down, *biases, activation="silu")
    torch.testing.assert_close(got[1:], alone)

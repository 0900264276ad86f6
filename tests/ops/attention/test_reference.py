"""The reference against something that owes it nothing: transformers' eager attention, and a loop over keys."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager
from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward as qwen3_eager

from tpu_kernels.ops.attention.cases import case
from tpu_kernels.ops.attention.reference import static_attention_reference
from tpu_kernels.ops.attention.suite import Probe, case_probe


def additive_mask(probe: Probe) -> torch.Tensor:
    position = torch.arange(probe.key.shape[2])
    valid = (position >= probe.bounds[..., :1]) & (position < probe.bounds[..., 1:])
    return torch.zeros(valid.shape).masked_fill(~valid, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("name", "eager"),
    [("gpt-oss-20b", gpt_oss_eager), ("gemma-2-9b", gemma2_eager), ("qwen3-0.6b", qwen3_eager)],
    ids=["sinks", "softcap", "plain"],
)
def test_equals_the_eager_attention_of_transformers(name, eager, phase) -> None:
    probe = case_probe(case(f"{name}/{phase}/small"))
    module = SimpleNamespace(
        num_key_value_groups=probe.query.shape[1] // probe.key.shape[1], sinks=probe.sinks, training=False
    )
    options = {} if probe.softcap is None else {"softcap": probe.softcap}
    wanted, _ = eager(module, probe.query, probe.key, probe.value, additive_mask(probe), scaling=probe.scale, **options)
    got = static_attention_reference(
        probe.query,
        probe.key,
        probe.value,
        probe.bounds,
        probe.sinks,
        scale=probe.scale,
        softcap=probe.softcap,
    )
    torch.testing.assert_close(got, wanted.transpose(1, 2), atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    start=st.integers(0, 6),
    end=st.integers(0, 6),
    softcap=st.sampled_from([None, 2.0]),
    with_sinks=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_a_loop_over_keys(kv_heads, group, start, end, softcap, with_sinks, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads, length, scale = kv_heads * group, 6, 0.7
    query = torch.randn(1, heads, 1, 4, generator=generator, dtype=torch.float64)
    key = torch.randn(1, kv_heads, length, 4, generator=generator, dtype=torch.float64)
    value = torch.randn(1, kv_heads, length, 3, generator=generator, dtype=torch.float64)
    sinks = torch.randn(heads, generator=generator, dtype=torch.float64) if with_sinks else None
    bounds = torch.tensor([start, end], dtype=torch.int32).reshape(1, 1, 1, 2)
    got = static_attention_reference(query, key, value, bounds, sinks, scale=scale, softcap=softcap)
    for head in range(heads):
        numerator, denominator = [0.0] * 3, 0.0 if sinks is None else math.exp(sinks[head])
        for position in range(start, end):
            logit = scale * float(query[0, head, 0] @ key[0, head // group, position])
            if softcap is not None:
                logit = softcap * math.tanh(logit / softcap)
            denominator += math.exp(logit)
            for index in range(3):
                numerator[index] += math.exp(logit) * float(value[0, head // group, position, index])
        wanted = [0.0] * 3 if end <= start else [number / denominator for number in numerator]
        assert got[0, head, 0].tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_an_empty_row_is_zero_and_leaves_the_others_alone(dtype: torch.dtype, with_sinks: bool) -> None:
    query, key = torch.randn(1, 2, 3, 8, dtype=dtype), torch.randn(1, 1, 5, 8, dtype=dtype)
    bounds = torch.tensor([[0, 2], [4, 4], [3, 1]], dtype=torch.int32).reshape(1, 1, 3, 2)
    sinks = torch.ones(2) if with_sinks else None
    got = static_attention_reference(query, key, key, bounds, sinks, scale=1.0)
    assert got.dtype == dtype
    assert bool(got[:, :, 0].any())
    assert not bool(got[:, :, 1:].any())


def test_very_negative_sinks_change_nothing_and_large_ones_take_everything() -> None:
    query, key = torch.randn(1, 2, 1, 8), torch.randn(1, 1, 5, 8)
    bounds = torch.tensor([0, 5], dtype=torch.int32).reshape(1, 1, 1, 2)
    plain = static_attention_reference(query, key, key, bounds, scale=1.0)
    without = static_attention_reference(query, key, key, bounds, torch.full((2,), -1e9), scale=1.0)
    torch.testing.assert_close(without, plain)
    drowned = static_attention_reference(query, key, key, bounds, torch.full((2,), 1e9), scale=1.0)
    assert not bool(drowned.any())

"""The references against something that owes them nothing: layers of transformers, and loops over numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, GPT2Config, OPTConfig, Phi3Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.opt.modeling_opt import OPTDecoderLayer
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from tpu_kernels.ops.mlp.cases import SMALL_CASES
from tpu_kernels.ops.mlp.reference import (
    gated_mlp_layers,
    gated_mlp_reference,
    mlp_layers,
    mlp_reference,
)
from tpu_kernels.ops.mlp.suite import case_probe, make_probe

LAYERS = {"gated_mlp": gated_mlp_layers, "mlp": mlp_layers}
REFERENCES = {"gated_mlp": gated_mlp_reference, "mlp": mlp_reference}


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.double().requires_grad_(False)


X = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_equals_a_gated_layer_of_transformers() -> None:
    layer = randomized(Gemma2MLP(Gemma2Config(hidden_size=32, intermediate_size=48)))
    weights = (layer.gate_proj.weight, layer.up_proj.weight, layer.down_proj.weight)
    torch.testing.assert_close(gated_mlp_reference(X, *weights, activation="gelu_tanh"), layer(X))


def test_equals_a_fused_layer_of_transformers() -> None:
    layer = randomized(Phi3MLP(Phi3Config(hidden_size=32, intermediate_size=48, pad_token_id=0)))
    got = gated_mlp_reference(X, layer.gate_up_proj.weight, None, layer.down_proj.weight, activation="silu")
    torch.testing.assert_close(got, layer(X))


def test_equals_a_transposed_layer_of_transformers() -> None:
    layer = randomized(GPT2MLP(48, GPT2Config(n_embd=32, resid_pdrop=0.0)))
    weights = (layer.c_fc.weight, layer.c_proj.weight, layer.c_fc.bias, layer.c_proj.bias)
    torch.testing.assert_close(mlp_reference(X, *weights, activation="gelu_tanh", transposed=True), layer(X))


def test_equals_two_linear_layers_of_transformers() -> None:
    layer = randomized(OPTDecoderLayer(OPTConfig(hidden_size=32, ffn_dim=48, num_attention_heads=2)))
    weights = (layer.fc1.weight, layer.fc2.weight, layer.fc1.bias, layer.fc2.bias)
    wanted = layer.fc2(layer.activation_fn(layer.fc1(X)))
    torch.testing.assert_close(mlp_reference(X, *weights, activation="relu"), wanted)


def test_limit_and_offset_are_those_of_transformers() -> None:
    """Its clamped gate has halves that are interleaved; a gate of x * sigmoid(1.702 x) is `quick_gelu`."""
    gate, up, down = (torch.randn(*size, dtype=torch.float64) for size in ((48, 32), (48, 32), (32, 48)))
    module = type("Limits", (), {"alpha": 1.702, "limit": 1.25})()
    interleaved = torch.stack([X @ gate.T, X @ up.T], dim=-1).flatten(-2)
    wanted = GptOssExperts._apply_gate(module, interleaved) @ down.T
    got = gated_mlp_reference(X, gate, up, down, activation="quick_gelu", limit=1.25, up_offset=1.0)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=40, deadline=None)
@given(
    hidden=st.integers(1, 4),
    inner=st.integers(1, 4),
    out=st.integers(1, 3),
    limit=st.sampled_from([None, 0.5]),
    seed=st.integers(0, 10**6),
)
def test_equals_a_loop_over_numbers(hidden: int, inner: int, out: int, limit: float | None, seed: int) -> None:
    probe = make_probe("one", (1,), hidden, inner, out, "silu", bias=True, seed=seed)
    x, gate, up, down, gate_bias, up_bias, down_bias = (tensor.double() for tensor in probe.tensors)
    got = gated_mlp_reference(
        x, gate, up, down, gate_bias, up_bias, down_bias, activation="silu", limit=limit, up_offset=0.25
    )
    between = []
    for row in range(inner):
        first = sum(float(x[0, at] * gate[row, at]) for at in range(hidden)) + float(gate_bias[row])
        second = sum(float(x[0, at] * up[row, at]) for at in range(hidden)) + float(up_bias[row])
        if limit is not None:
            first, second = min(first, limit), max(-limit, min(second, limit))
        between.append(first / (1 + math.exp(-first)) * (second + 0.25))
    wanted = [
        sum(between[row] * float(down[column, row]) for row in range(inner)) + float(down_bias[column])
        for column in range(out)
    ]
    assert got[0].tolist() == pytest.approx(wanted, abs=1e-10)


def test_rounding_each_is_what_operations_in_bfloat16_give() -> None:
    torch.manual_seed(0)
    x, gate, up = (torch.randn(*size).bfloat16() for size in ((9, 16), (24, 16), (24, 16)))
    down = torch.eye(24).bfloat16()
    first, second = (x.float() @ gate.float().T).bfloat16(), (x.float() @ up.float().T).bfloat16()
    cut, offset = second.clamp(-1.5, 1.5), second.clamp(-1.5, 1.5) + 1
    wanted = torch.nn.functional.silu(first.clamp(max=1.5)) * offset
    options = {"activation": "silu", "limit": 1.5, "up_offset": 1.0}
    assert gated_mlp_reference(x, gate, up, down, **options).equal(wanted)
    last = gated_mlp_reference(x, gate, up, down, rounding="last", **options)
    once = torch.nn.functional.silu(first.clamp(max=1.5).float()) * (cut.float() + 1)
    assert last.equal(once.bfloat16())
    assert 0.5 < float((last == wanted).float().mean()) < 0.9


def test_the_bias_is_added_before_the_rounding() -> None:
    x, up = torch.full((1, 2), 1.0).bfloat16(), torch.tensor([[1.0, 2.0**-8]]).bfloat16()
    bias, down = torch.tensor([2.0**-8]), torch.ones(1, 1).bfloat16()
    got = mlp_reference(x, up, down, bias, activation="identity")
    assert float(got) == 1 + 2.0**-7, "1 + 2^-8 alone would have been rounded to 1"


@pytest.mark.parametrize("one", SMALL_CASES, ids=lambda one: one.name)
def test_the_baseline_is_the_reference_up_to_rounding(one) -> None:
    probe = case_probe(one)
    got = LAYERS[probe.function](*probe.tensors, **probe.keywords)
    torch.testing.assert_close(got, REFERENCES[probe.function](*probe.tensors, **probe.keywords), rtol=1e-4, atol=1e-4)


def test_the_baseline_cuts_and_adds_too() -> None:
    probe = make_probe("cut", (3,), 16, 24, 8, "silu", fused=True, bias=True, limit=0.5, up_offset=1.0)
    got = gated_mlp_layers(*probe.tensors, **probe.keywords)
    torch.testing.assert_close(got, gated_mlp_reference(*probe.tensors, **probe.keywords))

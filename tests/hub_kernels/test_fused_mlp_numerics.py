"""The Pallas kernel's numbers, in the HLO interpreter, against the reference and against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, GPT2Config, Phi3Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from tests.hub_kernels.fused_mlp import SOURCE, interpreted
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.mlp.cases import SMALL_CASES
from tpu_kernels.ops.mlp.suite import Probe, case_probe, check_probe, edge_probes, make_probe

FUSED_MLP = load_source(SOURCE)
SHORT = interpreted(FUSED_MLP, block_rows=16, block_i=128)
DECODES = (["qwen3-8b", "decode"], ["glm-4-9b", "decode-8"], ["gpt2-xl", "decode"], ["starcoder2-3b", "decode-8"])
BFLOAT16 = ("activation", "round", "limit", "17 rows")


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.parametrize("one", [one for one in SMALL_CASES if "prefill" in one.name], ids=name_of)
def test_cases_in_float32(one) -> None:
    assert check_probe(SHORT, case_probe(one)) is None


@pytest.mark.parametrize("one", [one for one in SMALL_CASES if one.name.split("/")[:2] in DECODES], ids=name_of)
def test_cases_in_bfloat16(one) -> None:
    assert check_probe(SHORT, case_probe(one, torch.bfloat16)) is None


@pytest.mark.parametrize("probe", [one for one in edge_probes() if "activation" not in one.name], ids=name_of)
def test_edges_in_float32(probe: Probe) -> None:
    assert check_probe(SHORT, probe) is None


@pytest.mark.parametrize(
    "probe", [one for one in edge_probes(torch.bfloat16) if any(part in one.name for part in BFLOAT16)], ids=name_of
)
def test_edges_in_bfloat16(probe: Probe) -> None:
    """The bits show the order of roundings."""
    assert check_probe(SHORT, probe) is None


@pytest.mark.parametrize(
    "tuning", [{}, {"block_rows": 32}, {"block_i": 256}, {"block_rows": 64, "block_i": 384}], ids=str
)
def test_tuning_changes_no_result(tuning) -> None:
    """One step for all, a last block of rows and of intermediate positions with a rest, several of both."""
    probe = make_probe("rows", (71,), 128, 640, 96, "silu", bias=True)
    assert check_probe(interpreted(FUSED_MLP, **tuning), probe) is None


def test_rows_and_weights_behind_the_end_are_not_used() -> None:
    """The interpreter fills what lies behind the end of an array with NaN; no row or slice may take from it."""
    probe = make_probe("rests", (37,), 128, 200, 128, "relu2", bias=True)
    assert check_probe(SHORT, probe) is None


@pytest.mark.parametrize(
    ("layer", "config", "options"),
    [
        (Gemma2MLP, Gemma2Config(hidden_size=96, intermediate_size=300), {"activation": "gelu_tanh"}),
        (Phi3MLP, Phi3Config(hidden_size=96, intermediate_size=200, pad_token_id=0), {"activation": "silu"}),
        (GPT2MLP, GPT2Config(n_embd=96, resid_pdrop=0.0), {"activation": "gelu_tanh", "transposed": True}),
    ],
    ids=["gated", "fused gate and up", "transposed with biases"],
)
@torch.no_grad()
def test_equals_the_layers_of_transformers(layer, config, options) -> None:
    torch.manual_seed(0)
    module = layer(300, config) if layer is GPT2MLP else layer(config)
    for parameter in module.parameters():
        parameter.normal_(std=0.2)
    weights = dict(module.named_parameters())
    names = {
        Gemma2MLP: ("gate_proj.weight", "up_proj.weight", "down_proj.weight"),
        Phi3MLP: ("gate_up_proj.weight", None, "down_proj.weight"),
        GPT2MLP: ("c_fc.weight", "c_proj.weight", "c_fc.bias", "c_proj.bias"),
    }[layer]
    x = torch.randn(2, 3, 96)
    call = SHORT["mlp" if layer is GPT2MLP else "gated_mlp"]
    got = call(x, *(None if name is None else weights[name].detach() for name in names), **options)
    torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-4)

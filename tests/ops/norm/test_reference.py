"""The reference against the norm classes of transformers and torch, bit by bit where they sum in the same way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.chameleon.modeling_chameleon import ChameleonLayerNorm
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.deberta.modeling_deberta import DebertaLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm, Llama4TextRMSNorm
from transformers.models.moonshine_streaming.modeling_moonshine_streaming import MoonshineStreamingLayerNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from tpu_kernels.ops.norm.reference import norm_reference

SCALE = {"order": "scale_then_round"}
CENTER = {"center": True, "order": "scale_then_round"}
KINDS: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "llama": (LlamaRMSNorm(96, 1e-5), {}),
    "llama 4": (Llama4TextRMSNorm(96, 1e-5), {}),
    "llama 4 l2": (Llama4TextL2Norm(1e-5), {}),
    "t5": (T5LayerNorm(96, 1e-5), {}),
    "gemma 2": (Gemma2RMSNorm(96, 1e-5), {"offset": 1.0, **SCALE}),
    "gemma 3n": (Gemma3nRMSNorm(96, 1e-5), SCALE),
    "gemma 3n without weight": (Gemma3nRMSNorm(96, 1e-5, with_scale=False), SCALE),
    "qwen 3 next": (Qwen3NextRMSNorm(96, 1e-5), {"offset": 1.0, **SCALE}),
    "olmo 2": (Olmo2RMSNorm(96, 1e-5), SCALE),
    "olmo": (OlmoLayerNorm(96), {"center": True}),
    "cohere": (CohereLayerNorm(96, 1e-5), CENTER),
    "cohere by head": (CohereLayerNorm((6, 96), 1e-5), CENTER),
    "nemotron": (NemotronLayerNorm1P(96, 1e-5), {"offset": 1.0, "center": True, "order": "round_offset"}),
    "deberta": (DebertaLayerNorm(96, 1e-5), {"center": True}),
    "chameleon by head": (ChameleonLayerNorm((6, 96)), {"center": True}),
    "moonshine": (MoonshineStreamingLayerNorm(96), {"center": True, "offset": 1.0}),
    "torch LayerNorm": (nn.LayerNorm(96, 1e-5), CENTER),
    "torch RMSNorm": (nn.RMSNorm(96, 1e-5, elementwise_affine=False), SCALE),
}
OF_TORCH = ("olmo", "nemotron", "chameleon by head", "moonshine", "torch LayerNorm", "torch RMSNorm")
"""Their sums are torch's own, in another order."""


def parameter(module: nn.Module, *names: str) -> torch.Tensor | None:
    return next((getattr(module, name).detach() for name in names if getattr(module, name, None) is not None), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
def test_equals_the_norms_of_models(name: str, dtype: torch.dtype) -> None:
    module, keywords = KINDS[name]
    torch.manual_seed(0)
    for one in module.parameters():
        nn.init.normal_(one, mean=1.0)
    module = module.to(dtype)
    x = (torch.randn(4, 50, 6, 96) + 0.5) * torch.tensor([0.003, 1.0, 30.0, 1000.0])[:, None, None, None]
    x = x.to(dtype)
    with torch.no_grad():
        wanted = module(x)
    weight = parameter(module, "weight", "gamma")
    got = norm_reference(x, weight, parameter(module, "bias"), eps=1e-5, **keywords)
    if name not in OF_TORCH:
        tolerance = 1e-6 if dtype == torch.float32 else 0.0
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    else:
        close = 1e-5 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(got, wanted, rtol=close, atol=close)
        if dtype == torch.bfloat16:
            assert int((got != wanted).sum()) < 0.005 * got.numel()


def test_equals_a_loop_over_elements() -> None:
    x = torch.randn(3, 5, dtype=torch.float64) + 1
    weight, bias = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    got = norm_reference(x, weight, bias, eps=0.1, center=True, offset=0.5, order="scale_then_round")
    for row in range(3):
        values = x[row].tolist()
        mean = sum(values) / 5
        root = math.sqrt(sum((value - mean) ** 2 for value in values) / 5 + 0.1)
        wanted = [(value - mean) / root * (0.5 + w) + b for value, w, b in zip(values, weight, bias, strict=True)]
        assert got[row].tolist() == pytest.approx([float(value) for value in wanted], abs=1e-12)


def test_orders_differ_in_bfloat16_and_agree_in_float32() -> None:
    x, weight = torch.randn(64, 128), 1 + torch.randn(128)
    orders = ("round_then_scale", "scale_then_round", "round_offset")
    exact = [norm_reference(x, weight, eps=1e-5, offset=1.0, order=order) for order in orders]
    torch.testing.assert_close(exact[0], exact[1])
    torch.testing.assert_close(exact[0], exact[2])
    x, weight = x.bfloat16(), weight.bfloat16()
    first, second, third = (norm_reference(x, weight, eps=1e-5, offset=1.0, order=order) for order in orders)
    for one, other in ((first, second), (first, third), (second, third)):
        assert int((one != other).sum()) > 0.05 * x.numel()


def test_a_float32_weight_beside_bfloat16_is_not_rounded() -> None:
    x, weight = torch.randn(8, 64).bfloat16(), torch.randn(64)
    got = norm_reference(x, weight, eps=1e-5, order="scale_then_round")
    assert got.dtype == torch.bfloat16
    assert bool((got == norm_reference(x.float(), weight, eps=1e-5).bfloat16()).all())

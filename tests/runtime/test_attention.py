"""The fallbacks of our attention function against an op's reference."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from tpu_kernels.ops.attention.reference import static_attention_reference
from tpu_kernels.runtime.attention import fallback_name, plain_attention, run_fallback


class Attention(torch.nn.Module):
    """A module whose file has no eager attention of its own."""

    num_key_value_groups = 2
    is_causal = True


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    bounds = torch.tensor([[0, 4], [2, 5], [3, 6]], dtype=torch.int32).expand(2, 1, 3, 2)
    return torch.randn(2, 4, 3, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 8), bounds


def test_sinks_and_softcap_go_to_eager_attention() -> None:
    assert fallback_name("sdpa", None, None) == "sdpa"
    assert fallback_name("sdpa", 5.0, None) == "eager"
    assert fallback_name("sdpa", None, torch.zeros(1)) == "eager"


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_the_fallback_is_what_the_reference_says(sinks: torch.Tensor | None, softcap: float | None) -> None:
    query, key, value, bounds = tensors()
    name = fallback_name("sdpa", softcap, sinks)
    kwargs = {name: arg for name, arg in (("softcap", softcap), ("s_aux", sinks)) if arg is not None}
    got, _ = run_fallback(name, Attention(), query, key, value, bounds, scaling=0.3, **kwargs)
    want = static_attention_reference(query, key, value, bounds, sinks, scale=0.3, softcap=softcap)
    torch.testing.assert_close(got, want.transpose(1, 2), atol=1e-5, rtol=0)


def test_plain_attention_is_what_the_models_with_sinks_and_softcap_do() -> None:
    query, key, value, _ = tensors()
    module = Attention().eval()
    module.sinks = torch.nn.Parameter(torch.randn(4))
    mask = torch.zeros(2, 1, 3, 7)
    mask[:, :, 0, 4:] = torch.finfo(torch.float32).min
    want, _ = modeling_gpt_oss.eager_attention_forward(module, query, key, value, mask, scaling=0.3)
    got, _ = plain_attention(module, query, key, value, mask, scaling=0.3, s_aux=module.sinks)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    want, _ = modeling_gemma2.eager_attention_forward(module, query, key, value, mask, scaling=0.3, softcap=1.5)
    got, _ = plain_attention(module, query, key, value, mask, scaling=0.3, softcap=1.5)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)

"""Rotary embeddings are told apart by what their function computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.cohere.modeling_cohere import CohereAttention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAttention
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention
from transformers.models.nanochat.modeling_nanochat import NanoChatAttention

from tpu_kernels.plan.binding import RotaryFunction, Rotation
from tpu_kernels.plan.rotary import rotary_layer


def layer_of(attention: Any) -> Any:
    """The rotary layer of an attention class; only the class counts, so the module is empty."""
    module = torch.nn.Module()
    module.__class__ = attention
    return rotary_layer("attn", module)


FOUND = {
    "by halves": (LlamaAttention, ("apply_rotary_pos_emb", 2), ("whole", "half", "each"), ("whole", "half", None)),
    "by pairs, in float32": (CohereAttention, ("apply_rotary_pos_emb", 2), ("whole", "interleaved", "last"), None),
    "partial, by pairs": (
        GlmAttention,
        ("apply_rotary_pos_emb", 2),
        ("paired", "interleaved", "each"),
        ("paired", "interleaved", "each"),
    ),
    "partial, by halves": (
        GPTNeoXAttention,
        ("apply_rotary_pos_emb", 2),
        ("whole", "half", "each"),
        ("whole", "half", "each"),
    ),
    "half-width tables": (GptOssAttention, ("apply_rotary_pos_emb", 2), None, ("doubled", "half", "each")),
    "one tensor": (Gemma3nTextAttention, ("apply_rotary_pos_emb", 1), ("whole", "half", "each"), None),
}


@pytest.mark.parametrize(("attention", "function", "full", "narrow"), FOUND.values(), ids=FOUND.keys())
def test_variant(attention: Any, function: tuple[str, int], full: Any, narrow: Any) -> None:
    layer = layer_of(attention)
    assert layer.obstacle is None
    found: RotaryFunction = layer.rotary
    assert (found.name, found.tensors) == function
    assert found.full == (Rotation(*full) if full else None)
    assert found.narrow == (Rotation(*narrow) if narrow and narrow[2] else None)
    assert layer.path == f"attn.{function[0]}"


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (Llama4TextAttention, "does not take one or two tensors, cos and sin"),
        (NanoChatAttention, "computes another rotation"),
        (DeepseekV3Attention, "it chooses between apply_rotary_pos_emb_interleave and apply_rotary_pos_emb"),
    ],
    ids=["complex numbers", "the other way round", "two functions"],
)
def test_others_are_kept_with_the_reason(attention: Any, reason: str) -> None:
    layer = layer_of(attention)
    assert layer.rotary is None and reason in layer.obstacle


def test_attention_without_one_has_no_such_layer() -> None:
    assert layer_of(GPT2Attention) is None


def test_half_width_tables_fit_half_the_head_alone() -> None:
    doubled = RotaryFunction("f", 2, None, Rotation("doubled", "half", "each"))
    assert doubled.rotation(64, 32) is doubled.narrow
    assert doubled.rotation(64, 16) is None and doubled.rotation(64, 64) is None and doubled.rotation(64, 128) is None
    partial = RotaryFunction("f", 2, None, Rotation("whole", "half", "each"))
    assert partial.rotation(64, 16) is partial.narrow


def test_tables_become_one_number_per_position() -> None:
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    prepared = {each: Rotation(each, "half", "each").prepare(table).tolist() for each in ("whole", "doubled", "paired")}
    assert (
        prepared == SimpleNamespace(whole=[1, 2, 3, 4], doubled=[1, 2, 3, 4, 1, 2, 3, 4], paired=[1, 1, 2, 2]).__dict__
    )

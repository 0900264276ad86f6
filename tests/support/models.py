"""Tiny models whose weights make features bite, and the reference that every result is compared with."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tpu_kernels.harness.weights import biting_weights_

T = TypeVar("T")

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 127,
}


@dataclass
class Pair:
    """The same weights twice: `reference` on the CPU (float32, eager attention), `model` on the emulated TPU."""

    reference: PreTrainedModel
    model: PreTrainedModel


def build(config: PreTrainedConfig, *, seed: int = 0, attention: str = "eager") -> PreTrainedModel:
    """A model of `config` on the CPU, float32, in eval mode."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    return biting_weights_(AutoModelForCausalLM.from_config(config, attn_implementation=attention), seed).eval()


def on_tpu(reference: PreTrainedModel, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A second model with the reference's weights on the TPU, with the attention that transformers would choose."""
    config = copy.deepcopy(reference.config)
    config._attn_implementation_internal = None
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.load_state_dict(reference.state_dict())
    model.generation_config = copy.deepcopy(reference.generation_config)
    return model.to("tpu")


def pair(config: PreTrainedConfig, *, seed: int = 0) -> Pair:
    reference = build(config, seed=seed)
    return Pair(reference, on_tpu(reference))


def prompt(length: int, *, batch: int = 1, seed: int = 0, vocab: int = 120) -> torch.Tensor:
    """Random token ids `[batch, length]` that are neither padding nor special."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, vocab, (batch, length), generator=generator)


def left_padded(lengths: list[int], *, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask `[rows, longest]` of prompts of these lengths, padded on the left."""
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), pad)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = prompt(length, seed=row)[0]
        mask[row, longest - length :] = 1
    return ids, mask


def generate_reference(model: PreTrainedModel, ids: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens `[1, prompt + new]` and raw logits `[1, new, vocab]` of one unpadded prompt."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        disable_compile=True,
    )
    return out.sequences, torch.stack(out.logits, dim=1)


def attention(entries: Iterable[T]) -> list[T]:
    """Those of a report's or a plan's entries, or of a report's calls, that are about attention layers."""
    return [entry for entry in entries if entry.op == "attention"]  # type: ignore[attr-defined]

"""Tiny models that are divided as real ones are: with the real numbers of heads, and small everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    Gemma3TextConfig,
    Glm4Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.models import TINY, build, generate_reference, prompt

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
REAL = (
    "gemma-3-27b",
    "glm-4-9b",
    "gpt-oss-20b",
    "llama-3.1-8b",
    "mixtral-8x7b",
    "phi-4",
    "qwen3-0.6b",
    "qwen3-8b",
)
"""The real models whose plans are tested, by the names of their files in benchmarks/configs (glm-4-9b is 0414)."""

REFERENCE = "reference.pt"


def real_config(name: str, layers: int | None = None) -> PreTrainedConfig:
    """The config of a real model, with all its layers or only the first of them."""
    values = json.loads((CONFIGS / f"{name}.json").read_text())
    text = values.get("text_config", values)
    if layers is not None:
        text["num_hidden_layers"] = layers
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][:layers]
    return AutoConfig.for_model(**values)


def tiny_configs(layers: int = 2) -> dict[str, PreTrainedConfig]:
    """A small config for each real model of `REAL`, under its name, and further ones that are divided in other ways."""

    def heads(query: int, kv: int, **more: Any) -> dict[str, Any]:
        sizes = {"head_dim": 16, "num_attention_heads": query, "num_key_value_heads": kv, "num_hidden_layers": layers}
        return {**TINY, **sizes, **more}

    kinds = ["sliding_attention", "full_attention"]
    windows = {"sliding_window": 8, "layer_types": [kinds[layer % 2] for layer in range(layers)]}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return {
        "qwen3-0.6b": Qwen3Config(**heads(16, 8, tie_word_embeddings=True)),
        "qwen3-8b": Qwen3Config(**heads(32, 8, tie_word_embeddings=False)),
        "llama-3.1-8b": LlamaConfig(**heads(32, 8)),
        "glm-4-9b": Glm4Config(**heads(32, 2, attention_bias=True)),
        "phi-4": Phi3Config(**heads(40, 10)),
        "gemma-3-27b": Gemma3TextConfig(**heads(32, 16), **windows),
        "mixtral-8x7b": MixtralConfig(**heads(32, 8), **experts),
        "gpt-oss-20b": GptOssConfig(**heads(64, 8), **windows, **experts),
        "mistral": MistralConfig(**heads(8, 4, sliding_window=8)),
        "qwen3-moe": Qwen3MoeConfig(**heads(8, 4), num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        "odd-heads": Qwen3Config(**heads(6, 2)),
        "odd-groups": Qwen3Config(**heads(20, 5)),
        "odd-sizes": LlamaConfig(
            **heads(8, 4, vocab_size=129, intermediate_size=98, mlp_bias=True, tie_word_embeddings=True)
        ),
    }


def write_checkpoint(folder: Path, config: PreTrainedConfig, *, new: int = 6) -> Path:
    """Save a model of `config` with weights that bite, and what it says when it is whole: `REFERENCE` holds `ids`
    [1, 9], `logits` [1, 9, vocab] and the greedy `tokens` [1, 9 + new]."""
    model = build(config)
    ids = prompt(9)
    with torch.no_grad():
        logits = model(ids).logits
    tokens, _ = generate_reference(model, ids, new)
    model.save_pretrained(folder)
    torch.save({"ids": ids, "logits": logits, "tokens": tokens}, folder / REFERENCE)
    return folder

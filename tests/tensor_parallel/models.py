"""The tiny models that are divided over emulated chips; head counts have the divisibility of the real ones."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from tests.support.models import TINY

_HEADS = {**TINY, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
_GLM = {"num_key_value_heads": 2, "partial_rotary_factor": 0.5}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False},
    "qwen3_tied": {"model_type": "qwen3", "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "mlp_bias": True},
    "glm4": {"model_type": "glm4", "tie_word_embeddings": False, **_GLM},
    "phi3": {"model_type": "phi3", "tie_word_embeddings": False, "head_dim": None, "hidden_size": 128},
    "mistral": {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": 12},
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 2,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "tie_word_embeddings": False,
        "num_hidden_layers": 2,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "tie_word_embeddings": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


def config(name: str) -> PreTrainedConfig:
    """The configuration of one of MODELS."""
    values = {**_HEADS, **MODELS[name]}
    kept = {key: value for key, value in values.items() if value is not None and key != "model_type"}
    return AutoConfig.for_model(values["model_type"], **kept)

"""Tiny models of every decoder architecture of transformers, and whether the emulator gives their tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "architectures.json"
PROMPT = 11
NEW_TOKENS = 14


def architectures() -> dict[str, dict[str, Any]]:
    """Every architecture of the data file, by model type."""
    entries: dict[str, dict[str, Any]] = json.loads(DATA.read_text())
    return entries


def right_on_a_cpu() -> list[str]:
    """Model types that compile and that plain static-cache generation gets right on a CPU: those to test."""
    return [name for name, entry in architectures().items() if entry["full_graph"] and entry["static_cache"]]


def check(name: str) -> dict[str, Any]:
    """Generate with architecture `name` on the CPU and on the TPU; needs a running emulator.

    The reference is float32, eager attention, a dynamic cache and no compilation; the TPU runs plain
    static-cache generation with transformers' automatic compilation, inputs on the device. Answers
    `equal` (the tokens), `logits` (largest difference), `gap` (smallest distance of the two best
    logits of the reference) and `seconds`.
    """
    import torch
    import transformers

    from tests.support.models import biting_weights_

    entry = architectures()[name]
    started = time.monotonic()
    # transformers compiles one function for all models; after eight of them it would run eagerly.
    torch.compiler.reset()
    torch.manual_seed(0)
    config_class = getattr(transformers, entry["config"])
    model_class = getattr(transformers, entry["model"])

    def config() -> Any:
        whole = config_class(**entry["arguments"])
        # A language model inside a larger one takes the text part of the configuration.
        inner = type(whole).sub_configs.get("text_config")
        return whole.get_text_config() if model_class.config_class is inner else whole

    eager = config()
    eager._attn_implementation = "eager"
    reference = biting_weights_(model_class(eager).float()).eval()
    model = model_class(config()).float().eval()
    model.load_state_dict(reference.state_dict())
    model = model.to("tpu")
    tokens = torch.randint(3, eager.get_text_config().vocab_size, (1, PROMPT))
    expected, expected_logits = _generate(reference, tokens)
    got, logits = _generate(model, tokens.to(model.device), cache_implementation="static")
    best = expected_logits.topk(2).values
    return {
        "name": name,
        "equal": expected.tolist() == got.tolist(),
        "logits": float((expected_logits - logits).abs().max()),
        "gap": float((best[:, 0] - best[:, 1]).min()),
        "seconds": round(time.monotonic() - started, 1),
    }


def _generate(model: Any, tokens: Any, **options: Any) -> tuple[Any, Any]:
    import torch

    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return output.sequences.cpu(), torch.cat([step.cpu() for step in output.logits])

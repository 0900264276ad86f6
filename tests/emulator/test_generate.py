"""A transformers model on the emulated TPU, without any kernels of ours: the CPU's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tests.support.models import TINY
from tpu_kernels import emulator
from tpu_kernels.harness.weights import biting_weights_

OPTIONS = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PreTrainedModel, PreTrainedModel]]:
    """(reference on the CPU, the same weights loaded with device_map="tpu")."""
    folder: Path = tmp_path_factory.mktemp("qwen3")
    config = Qwen3Config(**TINY, num_hidden_layers=2)
    config._attn_implementation = "eager"
    reference = biting_weights_(Qwen3ForCausalLM(config)).eval()
    reference.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="tpu", dtype=torch.float32)
    yield reference, model
    torch.compiler.reset()


@pytest.mark.parametrize("inputs", ["cpu", "tpu"])
def test_static_cache_and_automatic_compilation(models: tuple[PreTrainedModel, PreTrainedModel], inputs: str) -> None:
    reference, model = models
    assert model.device.type == "tpu"
    tokens = torch.randint(3, 120, (1, 9))
    expected = reference.generate(tokens, **OPTIONS)
    before = emulator.compilations()
    got = model.generate(tokens.to(inputs), cache_implementation="static", **OPTIONS)
    assert got.tolist() == expected.tolist()
    assert emulator.compilations() > before


def test_left_padded_batch_on_the_device(models: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    reference, model = models
    tokens = torch.randint(3, 120, (2, 9))
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    tokens[1, :4] = 0
    expected = reference.generate(tokens, attention_mask=mask, **OPTIONS)
    on_device = {"attention_mask": mask.to(model.device), "cache_implementation": "static", **OPTIONS}
    assert model.generate(tokens.to(model.device), **on_device).tolist() == expected.tolist()


def test_kernels_takes_this_for_a_tpu_host() -> None:
    from kernels.backends import _backend

    assert _backend().name == "tpu"

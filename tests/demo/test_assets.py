"""The bundled model: small, well formed, and a model of the text that it was trained on."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3ForCausalLM,
)

from tpu_kernels.demo import demo_model_path
from tpu_kernels.demo.prompts import PROMPTS
from tpu_kernels.errors import StackError

SCRIPT = Path(__file__).parents[2] / "examples/train_demo_model.py"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """So small a model runs many times faster on one thread where other processes want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def training_script() -> ModuleType:
    found = importlib.util.spec_from_file_location("train_demo_model", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@cache
def training_text() -> tuple[str, ...]:
    return tuple(training_script().documents())


@cache
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype="float32").eval()


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo_model_path())


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def written(writer: PreTrainedModel, prompt: str) -> list[str]:
    """The words of three letters and more of a greedy continuation; the last may be cut and is left out."""
    inputs = tokenizer()(prompt, return_tensors="pt")
    ids = writer.generate(**inputs, max_new_tokens=60, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    text = tokenizer().decode(ids, skip_special_tokens=True)
    return [word for word in words(text)[:-1] if len(word) >= 3]


def known_share(found: list[str]) -> float:
    """The share of these words that the training text has."""
    known = set(words("\n".join(training_text())))
    return sum(word in known for word in found) / len(found)


def test_the_folder_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in demo_model_path().iterdir()}
    assert sum(files.values()) <= 3_000_000, files
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(files)


def test_the_architecture_is_what_the_kernels_want() -> None:
    config = model().config
    assert type(model()) is Qwen3ForCausalLM
    assert config.head_dim in (16, 32, 64, 128, 256)
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    assert config.max_position_embeddings >= 1024
    assert len(tokenizer()) == config.vocab_size


def test_generation_config_names_the_tokens() -> None:
    config = GenerationConfig.from_pretrained(demo_model_path())
    assert config.eos_token_id == tokenizer().eos_token_id == tokenizer().bos_token_id == config.bos_token_id
    assert config.pad_token_id == tokenizer().pad_token_id != config.eos_token_id
    assert tokenizer().padding_side == "left"
    assert not config.do_sample


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = tokenizer()(text)["input_ids"]
    assert tokenizer().decode(ids) == text
    assert all(0 <= token < len(tokenizer()) for token in ids)


def test_common_words_are_one_token() -> None:
    for word in (" the", " exception", " function", " object"):
        assert len(tokenizer()(word)["input_ids"]) == 1


def test_it_writes_words_of_the_training_text() -> None:
    """Nearly all words are words of that text, and they are many different ones."""
    found = [written(model(), prompt) for prompt in PROMPTS]
    together = [word for each in found for word in each]
    assert known_share(together) >= 0.9, together
    assert len(set(together)) >= 40, together
    assert all(len(set(each)) >= 8 for each in found), found


def test_an_untrained_model_would_not_pass() -> None:
    torch.manual_seed(1)
    untrained = Qwen3ForCausalLM(model().config).eval()
    untrained.generation_config = model().generation_config
    together = [word for prompt in PROMPTS[:2] for word in written(untrained, prompt)]
    assert known_share(together) < 0.7 or len(set(together)) < 8, together


@torch.no_grad()
def test_it_has_learnt_and_uses_long_context() -> None:
    """Nats per token on the help topics, at positions 256 to 512 too; a uniform guess costs ln 2048 = 7.6."""
    text = max(training_text(), key=len)
    ids = tokenizer()(text, return_tensors="pt")["input_ids"][:, :513]
    assert ids.shape[1] == 513
    logits = model()(ids[:, :-1]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    assert loss[:256].mean() < 3.0
    assert loss[256:].mean() < 3.0


def test_the_training_script_is_deterministic_and_its_output_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of a few steps write the same files, of the bundled model's architecture."""
    outputs = []
    script = training_script()
    text = list(training_text())
    monkeypatch.setattr(script, "documents", text.copy)  # reading the library again would take seconds
    for name in ("first", "second"):
        script.main(["--out", str(tmp_path / name), "--steps", "8", "--batch", "2", "--length", "32"])
        outputs.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert outputs[0] == outputs[1]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    assert type(again) is Qwen3ForCausalLM
    bundled = json.loads((demo_model_path() / "config.json").read_text())
    assert json.loads(outputs[0]["config.json"]) == bundled


def test_a_lost_model_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_kernels.__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(StackError, match=r"bundled demo model is missing") as caught:
        demo_model_path()
    assert "examples/train_demo_model.py" in str(caught.value)

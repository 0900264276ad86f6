"""Divided models with kernels on every rank give the tokens of one CPU process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import build, generate_reference, left_padded, prompt
from tests.support.tensor_parallel import tiny_configs
from tests.support.today import part_of_today
from tests.tensor_parallel.launching import launch

NEW = 5
ALL = os.environ.get("TPU_KERNELS_TEST_ALL", "") not in ("", "0")
ONE_LAYER, TWO_LAYERS = tiny_configs(layers=1), tiny_configs(layers=2)
ALTERNATING = ("gemma-3-27b", "gpt-oss-20b")
"""Models whose layers are of two kinds."""
MODELS = [name for name in ONE_LAYER if not name.startswith("odd")]
_LISTED = {2: ["qwen3-0.6b", "qwen3-moe"], 4: ["glm-4-9b"]}


def models_on(chips: int) -> list[str]:
    """Those that run every time, and one more each day; all with TPU_KERNELS_TEST_ALL=1."""
    always = _LISTED[chips]
    others = [name for name in MODELS if name not in always]
    return MODELS if ALL else [*always, *(part_of_today(others, len(others)) if chips == 2 else [])]


def write(name: str, folder: Path) -> None:
    """A model's weights, and padded batches with plain transformers' tokens and logits for them on the CPU."""
    reference = build((TWO_LAYERS if name in ALTERNATING else ONE_LAYER)[name])
    reference.save_pretrained(folder)
    asked: dict[str, Any] = {}
    for lengths in ([5, 18], [9, 12]):
        ids, mask = left_padded(lengths)
        rows = [generate_reference(reference, prompt(length, seed=row), NEW) for row, length in enumerate(lengths)]
        tokens = torch.cat([sequences[:, -NEW:] for sequences, _ in rows])
        asked[str(lengths)] = (ids, mask, tokens, torch.cat([logits for _, logits in rows]))
    torch.save(asked, folder / "asked.pt")


@pytest.fixture(scope="module", params=[2, 4], ids=lambda chips: f"{chips} chips")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found for each model."""
    folder, out = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("out")
    for name in models_on(request.param):
        write(name, folder / name)
    folders = [str(folder / name) for name in models_on(request.param)]
    mode = ["--compiled-only"] if request.param == 4 and not ALL else []
    return launch(request.param, "generate.py", *mode, *folders, out=out)


def test_tokens_and_logits_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    wrong = {f"{name}, rank {rank}": each[name]["wrong"] for rank, each in enumerate(ranks) for name in each}
    assert not any(wrong.values()), wrong


def test_nothing_is_compiled_after_the_first_call(ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]:
        for each in ranks:
            counted = each[name]["compilations"]
            assert counted["compiled [9, 12]"] == 0 and not counted.get("eager [9, 12]"), (name, counted)


def test_every_rank_reports_the_same(ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]:
        assert len({each[name]["report"].replace("0.0 s", "") for each in ranks}) == 1, name


def test_attention_mlps_and_experts_ran_by_kernel(ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]:
        swapped = {(op, kernel is not None) for _, op, kernel, _ in ranks[0][name]["layers"]}
        first = "experts" if name in ("qwen3-moe", "mixtral-8x7b", "gpt-oss-20b") else "mlp"
        assert ("attention", True) in swapped and (first, True) in swapped, (name, ranks[0][name]["layers"])
        ran = {(op, phase) for op, phase, what in ranks[0][name]["ran"] if "/" in what}
        for op in ("attention", first):
            assert {(op, "decode"), (op, "prefill")} <= ran or op == "experts", (name, ran)


def test_undo_puts_the_shards_back(ranks: list[dict[str, Any]]) -> None:
    assert all(each[name]["undone"] for each in ranks for name in each)

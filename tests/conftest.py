"""Shared by the whole suite, which runs on the emulated TPU (see `addopts` in pyproject.toml)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

# The day is fixed here, before the workers start: they must collect the same tests.
import tests.support.today  # noqa: F401

# Tiny models: threads of an operator cost more than they bring, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _backend_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that need no device switch torch_tpu off for their process: here that is the process of all tests."""
    # Set and deleted through monkeypatch, so that its undo takes away what a command leaves behind.
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")


LONG_FIRST = ("tensor_parallel", "harness", "apply", "lab", "launch", "cli", "hub_kernels", "demo", "emulator", "plan")
"""Folders whose files take long. They come first, so that no worker has a long file left when the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONG_FIRST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: ranks.get(item.path.relative_to(tests).parts[0], len(ranks)))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

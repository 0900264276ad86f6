"""Shared by the whole suite, which runs on the emulated TPU (see `addopts` in pyproject.toml)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

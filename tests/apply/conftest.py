"""One small pair of models for the tests of this folder that only read it."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config

from tests.support.models import TINY, Pair, pair


@pytest.fixture(scope="session")
def qwen3() -> Pair:
    """Two layers of Qwen3; whoever enables `qwen3.model` undoes it."""
    return pair(Qwen3Config(**TINY, num_hidden_layers=2))


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Plain transformers may have driven Dynamo to its recompile limit, which bars a code object for the process."""
    torch._dynamo.reset()

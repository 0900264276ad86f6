"""One small pair of models for the tests of this folder that only read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import Qwen3Config

from tests.support.models import TINY, Pair, pair
from tpu_kernels import disable_tpu_kernels


@pytest.fixture(scope="session")
def _qwen3() -> Pair:
    return pair(Qwen3Config(**TINY, num_hidden_layers=2))


@pytest.fixture
def qwen3(_qwen3: Pair) -> Iterator[Pair]:
    """Two layers of Qwen3; a test that leaves it enabled does not spoil the next."""
    yield _qwen3
    disable_tpu_kernels(_qwen3.model)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Plain transformers may have driven Dynamo to its recompile limit, which bars a code object for the process."""
    torch._dynamo.reset()

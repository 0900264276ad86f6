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


@pytest.fixture(scope="session")
def _one_layer() -> Pair:
    return pair(Qwen3Config(**TINY, num_hidden_layers=1))


@pytest.fixture
def one_layer(_one_layer: Pair) -> Iterator[Pair]:
    """One layer of Qwen3, for what does not depend on how many there are: tracing takes most of the time."""
    yield _one_layer
    disable_tpu_kernels(_one_layer.model)


@pytest.fixture
def qwen3(_qwen3: Pair) -> Iterator[Pair]:
    """Two layers of Qwen3; a test that leaves it enabled does not spoil the next."""
    yield _qwen3
    disable_tpu_kernels(_qwen3.model)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Plain transformers may have driven Dynamo to its recompile limit, which bars a code object for the process."""
    torch._dynamo.reset()

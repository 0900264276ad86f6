"""A model on the CPU."""

from __future__ import annotations

import pytest
from transformers import Qwen3Config

from tests.support.models import TINY, Pair, build


@pytest.fixture
def qwen3_cpu() -> Pair:
    reference = build(Qwen3Config(**TINY, num_hidden_layers=2))
    return Pair(reference, reference)

"""Architectures in the emulator: a fixed few of each kind, and another each day.

All of them: `python -m tests.emulator.sweep`.
"""

from __future__ import annotations

import time

import pytest

from tests.emulator.architectures import architectures, check, right_on_a_cpu
from tests.emulator.sweep import HELD_BACK, right

# Dense, experts (grouped matmul), state space (scan) with experts.
FIXED = ("llama", "mixtral", "bamba")
PER_DAY = 1


def _of_today() -> list[str]:
    others = [name for name in right_on_a_cpu() if name not in FIXED and name not in HELD_BACK]
    day = int(time.time() // 86400)
    return [others[(day * PER_DAY + offset) % len(others)] for offset in range(PER_DAY)]


@pytest.mark.parametrize("name", [*FIXED, *_of_today()])
def test_tokens_and_logits_are_those_of_the_cpu(name: str) -> None:
    result = check(name)
    assert right(result), result


@pytest.mark.parametrize("name", HELD_BACK)
def test_architecture_held_back_by_a_fault_of_torch_tpu(name: str) -> None:
    """docs/known-faults.md; when this fails, torch_tpu has changed."""
    with pytest.raises(Exception, match="made on the CPU and used on the TPU") as caught:
        check(name)
    assert "modeling_phimoe.py" in str(caught.value)


def test_the_data_file() -> None:
    assert len(architectures()) == 182
    assert len(right_on_a_cpu()) == 128

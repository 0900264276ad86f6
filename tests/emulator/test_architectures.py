"""Plain transformers in the emulator: one architecture of each kind gives the CPU's tokens.

All of them: `tpu-kernels coverage --all --flow plain`.
"""

from __future__ import annotations

import pytest

from tpu_kernels.harness.coverage.architectures import load_architectures
from tpu_kernels.harness.coverage.check import check

ARCHITECTURES = load_architectures()


# Dense, experts (grouped matmul), state space (scan) with experts.
@pytest.mark.parametrize("name", ["llama", "mixtral", "bamba"])
def test_tokens_and_logits_are_those_of_the_cpu(name: str) -> None:
    row = check(name, ARCHITECTURES[name], "plain")
    assert row.right, row


def test_architecture_held_back_by_a_fault_of_torch_tpu() -> None:
    """docs/known-faults.md; when this fails, torch_tpu has changed."""
    with pytest.raises(Exception, match="made on the CPU and used on the TPU") as caught:
        check("phimoe", ARCHITECTURES["phimoe"], "plain")
    assert "modeling_phimoe.py" in str(caught.value)

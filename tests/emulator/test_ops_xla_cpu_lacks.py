"""Ops that torch_tpu lowers to what XLA:CPU cannot do, eager and compiled. Runs under the emulator plugin."""

from __future__ import annotations

import torch

from tpu_kernels import emulator


def test_cumsum() -> None:
    assert emulator.is_active()
    x = torch.randn(4, 7)
    torch.testing.assert_close(torch.cumsum(x.to("tpu"), 1).cpu(), torch.cumsum(x, 1))

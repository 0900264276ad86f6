"""compilations(), executions(), transferred() count what they say."""

from __future__ import annotations

import torch

from tpu_kernels import emulator


def _counts() -> tuple[int, int]:
    torch.accelerator.synchronize()
    return emulator.compilations(), emulator.executions()


def test_a_compiled_function_compiles_once_and_runs_each_time() -> None:
    function = torch.compile(lambda x: torch.relu(x @ x.mT) + 7, backend="tpu")
    x = torch.randn(12, 20).to("tpu")
    compiled, run = _counts()
    for calls in range(1, 4):
        function(x)
        assert _counts() == (compiled + 1, run + calls)
    function(torch.randn(13, 20).to("tpu"))
    assert _counts() == (compiled + 2, run + 4)


def test_an_eager_op_compiles_once_per_shape() -> None:
    x, y = torch.randn(3, 17).to("tpu"), torch.randn(5, 17).to("tpu")
    compiled, run = _counts()
    for _ in range(3):
        torch.sinh(x)
    torch.sinh(y)
    assert _counts() == (compiled + 2, run + 4)


def test_bytes_sent_to_the_device() -> None:
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2), (torch.bool, 1), (torch.int64, 8)):
        before = emulator.transferred()
        torch.zeros(30, 7).to(dtype).to("tpu").cpu()
        assert emulator.transferred() - before == 30 * 7 * size

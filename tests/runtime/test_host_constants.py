"""Graphs that make a tensor on the CPU and use it on the TPU, which torch_tpu alone cannot compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tpu_kernels.runtime.bridge import compile_for_tpu
from tpu_kernels.runtime.host_constants import fold_host_constants


def _frequencies(x: torch.Tensor) -> torch.Tensor:
    inverse = 1.0 / (10000.0 ** (torch.arange(0, 6, 2, dtype=torch.float) / 6))
    return x * inverse.to(x.device) + inverse.to(device=x.device, dtype=torch.float)


def _index(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(2, -1, -1)]


def _already_on_device(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(3, device=x.device)


@pytest.mark.parametrize("function", [_frequencies, _index, _already_on_device])
def test_constant_of_the_host(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([1.0, 2.0, 4.0])
    got = torch.compile(function, backend=compile_for_tpu)(x.to("tpu"))
    torch.testing.assert_close(got.cpu(), function(x))


def test_writes_in_place_beside_it_stay() -> None:
    def counted(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return _frequencies(x)

    x, count = torch.tensor([1.0, 2.0, 4.0]), torch.zeros(1).to("tpu")
    got = torch.compile(counted, backend=compile_for_tpu)(x.to("tpu"), count)
    torch.testing.assert_close(got.cpu(), _frequencies(x))
    assert count.item() == 1


def _folded(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> int:
    counts: list[int] = []

    def backend(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        counts.append(fold_host_constants(module))
        return module.forward

    torch.compile(function, backend=backend)(*inputs)
    return sum(counts)


def test_only_constants_that_the_tpu_uses_are_folded() -> None:
    x = torch.ones(3).to("tpu")
    assert _folded(_frequencies, x) == 1
    assert _folded(_already_on_device, x) == 0
    assert _folded(lambda t: torch.rand(3).to(t.device) + t, x) == 0, "random numbers are new at each call"
    assert _folded(lambda t: torch.nn.functional.dropout(torch.ones(3), training=True).to(t.device) + t, x) == 0
    assert _folded(lambda t: torch.zeros(0, 3).to(t.device).sum() + t, x) == 0, "nothing to fold"
    assert _folded(lambda t, h: t + (h + torch.arange(3)).to(t.device), x, torch.ones(3)) == 0, "an input, no constant"
    assert _folded(lambda t: t + torch.zeros(300, 300)[:3, :3].to(t.device).sum(), x) == 1, "small after slicing"
    assert _folded(lambda t: t + torch.zeros(300, 300).to(t.device).sum(), x) == 0, "too large for a literal"


@pytest.mark.parametrize("change", ["add_", "setitem", "iadd", "view", "shift", "overload", "view of an input"])
def test_constant_that_is_changed_in_place_is_left(change: str) -> None:
    def changed(x: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(3.0)
        if change == "add_":
            steps.add_(1)
        elif change == "setitem":
            steps[0] = 7
        elif change == "iadd":
            steps += 1
        elif change == "view":
            steps[:2].mul_(3)
        elif change == "shift":
            whole = torch.arange(3)
            whole <<= 1
            return x + whole.to(x.device)
        elif change == "overload":
            torch.ops.aten.add_.Scalar(steps, 4)
        else:
            steps.view_as(host).add_(5)
        return x + steps.to(x.device)

    assert _folded(changed, torch.ones(3).to("tpu"), torch.ones(3)) == 0

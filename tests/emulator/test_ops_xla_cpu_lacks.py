"""Ops whose TPU lowering XLA:CPU cannot do: the same values as on the CPU, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from tpu_kernels import emulator

SCANS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cumsum": lambda x: torch.cumsum(x, 1),
    "cumsum-first-dim": lambda x: torch.cumsum(x, 0),
    "cumsum-of-bool": lambda x: (x > 0).cumsum(1),
    "cumsum-of-int": lambda x: (x * 10).long().cumsum(-1),
    "cumsum-of-bfloat16": lambda x: torch.cumsum((x * 4).round().bfloat16(), 1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, 0),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "reversed-cumsum": lambda x: x.flip(1).cumsum(1).flip(1),
}


def _on_tpu(function: Callable[..., Any], *arguments: torch.Tensor) -> list[torch.Tensor]:
    result = function(*(argument.to("tpu") for argument in arguments))
    return [part.cpu() for part in (result if isinstance(result, tuple) else (result,))]


def _assert_same(function: Callable[..., Any], *arguments: torch.Tensor, compiled: bool) -> None:
    expected = function(*arguments)
    on_tpu = torch.compile(function, backend="tpu", fullgraph=True) if compiled else function
    got = _on_tpu(on_tpu, *arguments)
    for ours, theirs in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str, compiled: bool) -> None:
    _assert_same(SCANS[name], torch.randn(4, 9), compiled=compiled)


def test_gradients_of_scans() -> None:
    weights = torch.randn(4, 9)
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        gradients = []
        for device in ("cpu", "tpu"):
            torch.manual_seed(1)
            x = torch.randn(4, 9).to(device).requires_grad_()
            (SCANS[name](x) * weights.to(device)).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["2d-3d", "3d-2d", "2d-2d", "3d-3d"])
def test_grouped_matmul(kind: str, compiled: bool) -> None:
    ends = torch.tensor([2, 2, 8], dtype=torch.int32)
    groups, start = [], 0
    for end in ends.tolist():
        groups.append(slice(start, end))
        start = end
    left, right = {
        "2d-3d": (torch.randn(8, 16), torch.randn(3, 16, 32)),
        "3d-2d": (torch.randn(3, 16, 32), torch.randn(32, 8)),
        "2d-2d": (torch.randn(16, 8), torch.randn(8, 32)),
        "3d-3d": (torch.randn(3, 8, 16), torch.randn(3, 16, 32)),
    }[kind]
    expected = {
        "2d-3d": lambda: torch.cat([left[rows] @ right[g] for g, rows in enumerate(groups)]),
        "3d-2d": lambda: torch.cat([left[g] @ right[:, columns] for g, columns in enumerate(groups)], 1),
        "2d-2d": lambda: torch.stack([left[:, inner] @ right[inner] for inner in groups]),
        "3d-3d": lambda: torch.bmm(left, right),
    }[kind]()

    def grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=None if kind == "3d-3d" else offsets)

    on_tpu = torch.compile(grouped, backend="tpu", fullgraph=True) if compiled else grouped
    (got,) = _on_tpu(on_tpu, left, right, ends)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_scans_of_jax() -> None:
    def from_jax(x: jax.Array) -> jax.Array:
        return jnp.cumsum(jax.lax.cummax(x, 0), axis=1)

    op = torch.tpu.pallas.jax_op("tpu_kernels_tests::scans", from_jax)
    x = torch.randn(6, 4)
    (got,) = _on_tpu(op, x)
    torch.testing.assert_close(got, torch.cummax(x, 0).values.cumsum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_scan_operators_of_torch(compiled: bool) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    def running_product(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")

    x = torch.randn(7, 3)
    on_tpu = torch.compile(running_product, backend="tpu", fullgraph=True) if compiled else running_product
    (got,) = _on_tpu(on_tpu, x)
    torch.testing.assert_close(got, torch.cumprod(x, 0), rtol=1e-5, atol=1e-5)


def test_float32_matmul_keeps_float32() -> None:
    # Rounded to bfloat16, as a TPU does by default, the product would be off by 1e-2.
    a, b = torch.randn(64, 256), torch.randn(256, 64)
    exact = a.double() @ b.double()
    for function in (torch.matmul, torch.compile(torch.matmul, backend="tpu")):
        (got,) = _on_tpu(function, a, b)
        assert (got.double() - exact).abs().max() < 1e-4


def test_mosaic_kernel_outside_interpret_mode_is_an_error() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def double(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    def doubled(x: jax.Array) -> jax.Array:
        return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = torch.randn(8, 128)
    op = torch.tpu.pallas.jax_op("tpu_kernels_tests::doubled_by_mosaic", doubled)
    pltpu.set_tpu_interpret_mode(False)
    try:
        with pytest.raises(Exception, match=r"cannot run a Mosaic kernel .* must be traced in interpret mode"):
            op(x.to("tpu")).cpu()
    finally:
        pltpu.set_tpu_interpret_mode(True)
    in_interpret_mode = torch.tpu.pallas.jax_op("tpu_kernels_tests::doubled", doubled)
    torch.testing.assert_close(in_interpret_mode(x.to("tpu")).cpu(), x * 2)


def test_op_without_a_cpu_lowering_is_an_error_that_names_it() -> None:
    with pytest.raises(RuntimeError, match="LuDecomposition"):
        torch.linalg.inv(torch.eye(4).to("tpu")).cpu()
    assert emulator.is_active()
    torch.testing.assert_close((torch.ones(2).to("tpu") + 1).cpu(), torch.full((2,), 2.0))

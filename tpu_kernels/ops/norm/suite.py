"""The suite that every implementation of a norm must pass, as data and one function.

A probe is a call whose inputs make its features count: rows differ in size, so that a mean over two of them is seen;
some have a mean of their own and some are so small that eps decides; weights are far from 1, bias and offset from 0.
Where a result in bfloat16 is rounded shows in its last bit alone. It is therefore compared bit by bit, and only as
many elements may differ as sums in another order explain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tpu_kernels.ops.norm.cases import SMALL_CASES, NormCase
from tpu_kernels.ops.norm.contract import ORDERS
from tpu_kernels.ops.norm.reference import norm_reference

Norm = Callable[..., torch.Tensor]
"""norm(x, weight, bias, *, eps, center, offset, order) on CPU tensors."""

DIFFERING_SHARE = 0.01
"""Of the elements of a bfloat16 result: float32 sums in another order move a few in ten thousand across an edge."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call, on the CPU."""

    name: str
    x: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    center: bool = False
    offset: float = 0.0
    order: str = "round_then_scale"

    @property
    def keywords(self) -> dict[str, Any]:
        return {"eps": self.eps, "center": self.center, "offset": self.offset, "order": self.order}


@dataclass(frozen=True)
class Mismatch:
    """A probe that an implementation got wrong."""

    probe: str
    message: str

    def __str__(self) -> str:
        return f"{self.probe}: {self.message}"


def make_probe(
    name: str,
    shape: tuple[int, ...],
    *,
    eps: float = 1e-5,
    weight: tuple[int, ...] | None = None,
    bias: bool = False,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
    dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Probe:
    """A call on x of `shape`; `weight` is the shape of the weight, and of the bias if there is one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    rows = math.prod(shape[:-1])
    x = normal((rows, shape[-1])) + 0.5 * normal((rows, 1))
    # From a row whose squares are the size of eps to rows of 100.
    sizes = torch.tensor([1.0, 100.0, eps**0.5, 3.0, 0.1])
    x = x * sizes.repeat(-(-rows // len(sizes)))[:rows, None]
    other = weight_dtype or dtype
    return Probe(
        name=name,
        x=x.reshape(shape).to(dtype),
        weight=None if weight is None else (1.5 + 0.7 * normal(weight)).to(other),
        bias=None if weight is None or not bias else (2.0 * normal(weight)).to(other),
        eps=eps,
        center=center,
        offset=offset,
        order=order,
    )


def case_probe(case: NormCase, dtype: torch.dtype = torch.float32) -> Probe:
    """A probe of a named case."""
    return make_probe(
        case.name,
        case.shape,
        eps=case.eps,
        weight=case.weight_shape if case.weight else None,
        bias=case.bias,
        center=case.center,
        offset=case.offset,
        order=case.order,
        dtype=dtype,
    )


def edge_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """One row, one dimension, numbers of rows around block edges, odd widths, every order with every parameter."""
    for shape in (
        (16,),
        (1, 1),
        (1, 80),
        (2, 1, 100),
        (15, 128),
        (16, 144),
        (17, 128),
        (9, 5, 72),
        (2, 21, 40),
        (3, 16, 64),
        (130, 256),
    ):
        yield make_probe(f"x {list(shape)}", shape, weight=shape[-1:], dtype=dtype)
    for order in ORDERS:
        for center in (False, True):
            kind = "layer" if center else "rms"
            name = f"{kind} norm, {order}, offset{', bias' if center else ''}"
            options: dict[str, Any] = {"bias": center, "center": center, "offset": 1.0, "order": order, "dtype": dtype}
            yield make_probe(name, (37, 96), weight=(96,), **options)
            yield make_probe(f"{name}, by head", (3, 11, 5, 64), weight=(5, 64), **options)
            if order != "round_then_scale":
                yield make_probe(
                    f"{name}, float32 weight", (37, 96), weight=(96,), weight_dtype=torch.float32, **options
                )
    options = {"weight": (40, 48), "offset": 1.0, "dtype": dtype}
    yield make_probe("rms norm, round_then_scale, offset, 40 heads", (3, 40, 48), **options)
    yield make_probe("layer norm without a weight", (40, 128), center=True, dtype=dtype)
    zeros = make_probe("rows of zeros", (20, 64), weight=(64,), bias=True, center=True, dtype=dtype)
    zeros.x[3:9] = 0
    yield zeros


def all_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every probe of the suite: the named cases of real models and the edges."""
    for case in SMALL_CASES:
        yield case_probe(case, dtype)
    yield from edge_probes(dtype)


def tolerance(probe: Probe, wanted: torch.Tensor) -> torch.Tensor:
    """Largest absolute error of each element that rounding explains.

    bfloat16: one unit in the last place for each rounding that an element goes through. float32: a few units, and
    those of the mean that is taken away, which are larger where it is large beside the rest of the row.
    """
    unit = torch.finfo(probe.x.dtype).eps
    scale = 1.0 if probe.weight is None else probe.weight.double().abs() + abs(probe.offset)
    bias = 0.0 if probe.bias is None else probe.bias.double().abs()
    size = wanted.double().abs() + bias
    if probe.x.dtype == torch.bfloat16:
        return (1 if probe.order != "round_then_scale" else 3) * unit * size
    rows = probe.x.double()
    centred = rows - rows.mean(-1, keepdim=True) if probe.center else rows
    factor = torch.rsqrt(centred.square().mean(-1, keepdim=True) + probe.eps)
    return 8 * unit * (size + rows.abs().amax(-1, keepdim=True) * factor * scale)


def check_probe(norm: Norm, probe: Probe) -> Mismatch | None:
    """What `norm` gets wrong of one probe.

    In float32 the reference is computed in float64 from the same inputs, in bfloat16 as the contract rounds.
    """
    got = norm(probe.x, probe.weight, probe.bias, **probe.keywords)
    exact = torch.float64 if probe.x.dtype == torch.float32 else None
    weight, bias = (None if one is None else one.to(exact or one.dtype) for one in (probe.weight, probe.bias))
    wanted = norm_reference(probe.x.to(exact or probe.x.dtype), weight, bias, **probe.keywords)
    if got.shape != wanted.shape or got.dtype != probe.x.dtype:
        return Mismatch(probe.name, f"expected {probe.x.dtype} {list(wanted.shape)}, got {got.dtype} {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return Mismatch(probe.name, f"{int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    error = (got.double() - wanted.double()).abs()
    excess = error - tolerance(probe, wanted)
    if float(excess.max()) > 0:
        worst = int(excess.argmax())
        place = [int(index) for index in torch.unravel_index(excess.argmax(), excess.shape)]
        return Mismatch(
            probe.name,
            f"off by {float(error.flatten()[worst]):.3g} at {place}, "
            f"allowed {float((error - excess).flatten()[worst]):.3g}",
        )
    differing = int((got != wanted).sum())
    if got.dtype == torch.bfloat16 and differing > 1 + DIFFERING_SHARE * got.numel():
        return Mismatch(
            probe.name, f"{differing} of {got.numel()} values differ in the last bit: rounded in another order"
        )
    return None


def run_suite(norm: Norm, probes: Iterable[Probe]) -> list[Mismatch]:
    """Every mismatch of `norm` over `probes`; an empty list is a pass. What `norm` raises is not caught."""
    return [mismatch for probe in probes if (mismatch := check_probe(norm, probe)) is not None]

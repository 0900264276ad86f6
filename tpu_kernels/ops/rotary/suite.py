"""The suite that every implementation of a rotary embedding must pass, as data and one function.

A probe is a call whose inputs make its features count: angles differ in every position and number, so that a pair, a
position or a batch row too far is seen; what is not turned must come back bit by bit. Where a result in bfloat16 is
rounded shows in its last bit alone. It is therefore compared bit by bit, and only as many elements may differ as
float32 sums explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tpu_kernels.ops.rotary.cases import SMALL_CASES, RotaryCase
from tpu_kernels.ops.rotary.contract import LAYOUTS, ROUNDINGS
from tpu_kernels.ops.rotary.reference import rotary_reference

Rotary = Callable[..., torch.Tensor]
"""rotary(x, cos, sin, *, layout, rounding) on CPU tensors."""

DIFFERING_SHARE = 0.01
"""Of the elements of a bfloat16 result: a product and a sum in one step move a few in ten thousand across an edge."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call, on the CPU."""

    name: str
    x: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    layout: str = "half"
    rounding: str = "each"

    @property
    def keywords(self) -> dict[str, Any]:
        return {"layout": self.layout, "rounding": self.rounding}


@dataclass(frozen=True)
class Mismatch:
    """A probe that an implementation got wrong."""

    probe: str
    message: str

    def __str__(self) -> str:
        return f"{self.probe}: {self.message}"


def make_probe(
    name: str,
    shape: tuple[int, int, int, int],
    rotary_dim: int,
    *,
    table_batch: int | None = None,
    layout: str = "half",
    rounding: str = "each",
    dtype: torch.dtype = torch.float32,
    table_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Probe:
    """A call on x of `shape`; `table_batch` is the batch of cos and sin, x's if it is None."""
    generator = torch.Generator().manual_seed(seed)
    batch, _, positions, _ = shape
    # Angles without a pattern, and the two members of a pair have different ones: more than a model needs.
    angles = torch.rand(table_batch or batch, positions, rotary_dim, generator=generator) * 6.3
    return Probe(
        name=name,
        x=(3.0 * torch.randn(shape, generator=generator)).to(dtype),
        cos=angles.cos().to(table_dtype or dtype),
        sin=angles.sin().to(table_dtype or dtype),
        layout=layout,
        rounding=rounding,
    )


def case_probe(case: RotaryCase, dtype: torch.dtype = torch.float32) -> Probe:
    """A probe of a named case."""
    return make_probe(
        case.name,
        case.shape,
        case.rotary_dim,
        layout=case.layout,
        rounding=case.rounding,
        dtype=dtype,
        table_dtype=torch.float32 if case.float32_tables else None,
    )


def edge_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Each layout, rounding and dtype of tables, whole and partial heads, one table for all rows, odd sizes."""
    for layout in LAYOUTS:
        for rounding in ROUNDINGS:
            for table_dtype in dict.fromkeys((dtype, torch.float32)):
                options: dict[str, Any] = {
                    "layout": layout,
                    "rounding": rounding,
                    "dtype": dtype,
                    "table_dtype": table_dtype,
                }
                name = f"{layout}, rounded {rounding}, tables of {str(table_dtype).removeprefix('torch.')}"
                yield make_probe(f"decode, {name}", (3, 5, 1, 64), 64, **options)
                yield make_probe(f"prefill, {name}, partial", (2, 3, 37, 96), 40, table_batch=1, **options)
    for shape, rotary_dim, layout in (
        ((1, 1, 1, 2), 2, "interleaved"),
        ((1, 1, 5, 8), 6, "half"),
        ((4, 9, 1, 80), 16, "half"),
        ((4, 18, 1, 128), 126, "interleaved"),
        ((2, 2, 16, 256), 256, "interleaved"),
        ((2, 2, 33, 256), 128, "half"),
        ((5, 1, 3, 16), 16, "interleaved"),
    ):
        yield make_probe(
            f"x {list(shape)}, the first {rotary_dim}, {layout}", shape, rotary_dim, layout=layout, dtype=dtype
        )
    yield make_probe("decode, one table for all rows", (5, 4, 1, 32), 32, table_batch=1, dtype=dtype)


def all_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every probe of the suite: the named cases of real models and the edges."""
    for case in SMALL_CASES:
        yield case_probe(case, dtype)
    yield from edge_probes(dtype)


def tolerance(probe: Probe) -> float:
    """Largest absolute error that rounding explains: half a unit of each product and of their sum, twice."""
    return 3 * torch.finfo(probe.x.dtype).eps * float(probe.x.abs().max())


def check_probe(rotary: Rotary, probe: Probe) -> Mismatch | None:
    """What `rotary` gets wrong of one probe.

    In float32 the reference is computed in float64 from the same inputs, in bfloat16 as the contract rounds.
    """
    got = rotary(probe.x, probe.cos, probe.sin, **probe.keywords)
    tensors = (probe.x, probe.cos, probe.sin)
    if probe.x.dtype == torch.float32:
        tensors = (probe.x.double(), probe.cos.double(), probe.sin.double())
    wanted = rotary_reference(*tensors, **probe.keywords)
    if got.shape != wanted.shape or got.dtype != probe.x.dtype:
        return Mismatch(probe.name, f"expected {probe.x.dtype} {list(wanted.shape)}, got {got.dtype} {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return Mismatch(probe.name, f"{int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    rotary_dim = probe.cos.shape[-1]
    if not torch.equal(got[..., rotary_dim:], probe.x[..., rotary_dim:]):
        return Mismatch(probe.name, f"the numbers of a head beyond the first {rotary_dim} are not those of x")
    error = (got.double() - wanted.double()).abs()
    allowed = tolerance(probe)
    if float(error.max()) > allowed:
        place = [int(index) for index in torch.unravel_index(error.argmax(), error.shape)]
        return Mismatch(probe.name, f"off by {float(error.max()):.3g} at [b, h, t, d] = {place}, allowed {allowed:.3g}")
    differing = int((got != wanted).sum())
    if got.dtype == torch.bfloat16 and differing > 1 + DIFFERING_SHARE * got.numel():
        return Mismatch(
            probe.name, f"{differing} of {got.numel()} values differ in the last bit: rounded in another order"
        )
    return None


def run_suite(rotary: Rotary, probes: Iterable[Probe]) -> list[Mismatch]:
    """Every mismatch of `rotary` over `probes`; an empty list is a pass. What `rotary` raises is not caught."""
    return [mismatch for probe in probes if (mismatch := check_probe(rotary, probe)) is not None]

"""The suite that every implementation of the MLPs must pass, as data and one function.

A probe is a call whose inputs make its features count: what goes into an activation spreads over its bend, a limit
cuts a good part of the values, biases are as large as what they are added to, and no row or column is like another.
In bfloat16 some probes have a down projection that hands the intermediate values on as they are: there the order of
roundings shows in the bits of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tpu_kernels.ops.activations import ACTIVATIONS
from tpu_kernels.ops.mlp.cases import SMALL_CASES, MlpCase
from tpu_kernels.ops.mlp.reference import gated_mlp_reference, mlp_reference

Implementation = Mapping[str, Callable[..., torch.Tensor]]
"""`gated_mlp` and `mlp` on CPU tensors, by name; arguments as the contract has them."""

REFERENCES: Implementation = {"gated_mlp": gated_mlp_reference, "mlp": mlp_reference}
EXACT_SHARE = 0.95
"""Of the values of an `exact` probe. A sum in another order moves a value over the edge of a rounding now and then; an
order of roundings that is wrong moves a third of them."""
NEARLY_ZERO = 2.0**-16
"""Values of this size are no test of roundings: the tails of an activation lose their digits in float32."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call, on the CPU."""

    name: str
    function: str
    tensors: tuple[torch.Tensor | None, ...]
    keywords: Mapping[str, Any]
    exact: bool = False
    """Nearly all values must have the reference's bits."""


@dataclass(frozen=True)
class Mismatch:
    """A probe that an implementation got wrong."""

    probe: str
    message: str

    def __str__(self) -> str:
        return f"{self.probe}: {self.message}"


def make_probe(
    name: str,
    lead: tuple[int, ...],
    hidden: int,
    intermediate: int,
    out: int,
    activation: str,
    *,
    gated: bool = True,
    fused: bool = False,
    bias: bool = False,
    transposed: bool = False,
    hands_on: bool = False,
    widest: float = 2.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **keywords: Any,
) -> Probe:
    """A call of those sizes. With `hands_on` the down projection is the identity: `out` is as wide as I.

    What goes into the activation has a standard deviation from 2 in the first column up to `widest` in the last.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, spread: float = 1.0) -> torch.Tensor:
        return (spread * torch.randn(*size, generator=generator)).to(dtype)

    def first(widest: float = 2.0) -> torch.Tensor:
        rows = torch.linspace(2.0, widest, intermediate)[:, None]
        return (rows * normal(intermediate, hidden, spread=hidden**-0.5)).to(dtype)

    def down() -> torch.Tensor:
        if hands_on:
            return torch.eye(out, intermediate, dtype=dtype)
        return normal(out, intermediate, spread=intermediate**-0.5)

    x = normal(*lead, hidden)
    weights: list[torch.Tensor | None] = [first(widest), first(), down()] if gated else [first(widest), down()]
    widths = [intermediate, intermediate, out] if gated else [intermediate, out]
    biases: list[torch.Tensor | None] = [normal(width) if bias else None for width in widths]
    if fused:
        for pair in (weights, biases):
            gate, up = pair[:2]
            pair[:2] = [None if gate is None or up is None else torch.cat([gate, up]), None]
    if transposed:
        weights = [None if weight is None else weight.T.contiguous() for weight in weights]
    options = {"activation": activation, **keywords}
    if not gated:
        options["transposed"] = transposed
    return Probe(
        name, "gated_mlp" if gated else "mlp", (x, *weights, *biases), options, hands_on and dtype == torch.bfloat16
    )


def case_probe(case: MlpCase, dtype: torch.dtype = torch.float32) -> Probe:
    """A probe of a named case."""
    shape = case.shape
    return make_probe(
        case.name,
        shape.lead,
        shape.hidden,
        shape.intermediate,
        shape.out,
        case.activation,
        gated=case.gated,
        fused=case.fused,
        bias=case.bias,
        transposed=case.transposed,
        rounding=case.rounding,
        dtype=dtype,
    )


def edge_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every activation, every feature with every other, odd sizes, block edges and their neighbours, many rows."""
    for number, name in enumerate(ACTIVATIONS):
        yield make_probe(
            f"activation {name}", (3,), 64, 48, 48, name, hands_on=True, widest=9.0, seed=number, dtype=dtype
        )
    for rounding in ("each", "last"):
        cut: dict[str, Any] = {"limit": 1.5, "up_offset": 1.0, "rounding": rounding}
        named = f"limit, offset, round {rounding}"
        yield make_probe(f"gated, {named}", (2, 5), 96, 64, 64, "quick_gelu", hands_on=True, dtype=dtype, **cut)
        yield make_probe(f"fused, {named}", (10,), 128, 256, 72, "silu", fused=True, bias=True, dtype=dtype, **cut)
        yield make_probe(
            f"round {rounding}", (16,), 64, 128, 128, "gelu_tanh", hands_on=True, rounding=rounding, dtype=dtype
        )
    for hidden, inner, out in ((16, 16, 16), (40, 37, 24), (37, 53, 19), (200, 127, 64), (64, 129, 130), (130, 300, 8)):
        sizes = (hidden, inner, out)
        named = f"{hidden} to {inner} to {out}"
        yield make_probe(f"gated, {named}", (1,), *sizes, "silu", bias=True, dtype=dtype)
        yield make_probe(f"fused, {named}", (2, 3), *sizes, "gelu", fused=True, bias=inner % 2 == 0, dtype=dtype)
        yield make_probe(f"two layers, {named}", (7,), *sizes, "gelu", gated=False, bias=True, dtype=dtype)
        yield make_probe(
            f"transposed, {named}", (2, 1, 9), *sizes, "gelu_tanh", gated=False, transposed=True, bias=True, dtype=dtype
        )
    # Halves of a fused weight that lie side by side, and one on top of the other with a rest.
    yield make_probe("fused, 192 to 384 to 64", (5,), 192, 384, 64, "silu", fused=True, dtype=dtype)
    yield make_probe("fused, 128 to 328 to 64", (5,), 128, 328, 64, "silu", fused=True, bias=True, dtype=dtype)
    for rows in (15, 16, 17, 33, 130):
        yield make_probe(f"gated, {rows} rows", (rows,), 128, 272, 128, "silu", bias=True, dtype=dtype)


def all_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every probe of the suite: the named cases of real models and the edges."""
    for case in SMALL_CASES:
        yield case_probe(case, dtype)
    yield from edge_probes(dtype)


def tolerance(probe: Probe, wanted: torch.Tensor) -> torch.Tensor:
    """Largest absolute error of each value that rounding explains, from the dtype and the size of the numbers.

    Every value is a sum whose terms have an error of some units in their last place. In bfloat16 the value itself is
    rounded once more, by half a unit, and a term is off by a whole unit where a sum in another order moved it over the
    edge of a rounding, which is rare.
    """
    unit = torch.finfo(probe.tensors[0].dtype).eps if probe.tensors[0] is not None else 0.0
    terms = _size_of_terms(probe)
    if unit > 1e-3:
        return unit * (wanted.abs() + terms / 16)
    return 32 * unit * terms


def check_probe(implementation: Implementation, probe: Probe) -> Mismatch | None:
    """What the implementation gets wrong of one probe.

    The reference is computed from the same inputs: in bfloat16 as it is, for its roundings, and in float64 for float32.
    """
    got = implementation[probe.function](*probe.tensors, **probe.keywords)
    x = probe.tensors[0]
    assert x is not None
    same = (
        probe.tensors if x.dtype == torch.bfloat16 else tuple(None if t is None else t.double() for t in probe.tensors)
    )
    wanted = REFERENCES[probe.function](*same, **probe.keywords)
    if got.shape != wanted.shape or got.dtype != x.dtype:
        return Mismatch(probe.name, f"expected {x.dtype} {list(wanted.shape)}, got {got.dtype} {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return Mismatch(probe.name, f"{int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    excess = (got.double() - wanted.double()).abs() - tolerance(probe, wanted.double())
    if float(excess.max()) > 0:
        place = torch.unravel_index(excess.argmax(), excess.shape)
        return Mismatch(
            probe.name,
            f"got {float(got[place]):.6g} at {[int(i) for i in place]}, expected {float(wanted[place]):.6g}; "
            f"{float((excess > 0).double().mean()):.1%} of the values are too far off",
        )
    same_bits = (got == wanted) | ((got.double() - wanted.double()).abs() < NEARLY_ZERO)
    if probe.exact and (share := float(same_bits.double().mean())) < EXACT_SHARE:
        return Mismatch(probe.name, f"rounded otherwise: {share:.1%} of the values have the reference's bits")
    return None


def run_suite(implementation: Implementation, probes: Iterable[Probe]) -> list[Mismatch]:
    """Every mismatch over `probes`; an empty list is a pass. What the implementation raises is not caught."""
    return [mismatch for probe in probes if (mismatch := check_probe(implementation, probe)) is not None]


def _size_of_terms(probe: Probe) -> torch.Tensor:
    """[..., O]: the sum of the sizes of what is summed for each value.

    An intermediate value has the error of its factors, which are of size 1 and more even where it is nearly 0.
    """
    options = dict(probe.keywords)
    x, *rest = (None if tensor is None else tensor.double() for tensor in probe.tensors)
    assert x is not None
    if probe.function == "gated_mlp":
        gate, up, down, gate_bias, up_bias, down_bias = rest
        assert gate is not None and down is not None
        inner = torch.eye(down.shape[1], dtype=torch.float64)
        between = gated_mlp_reference(x, gate, up, inner, gate_bias, up_bias, **options)
    else:
        up, down, up_bias, down_bias = rest
        assert up is not None and down is not None
        if options.pop("transposed"):
            up, down = up.T, down.T
        inner = torch.eye(down.shape[1], dtype=torch.float64)
        between = mlp_reference(x, up, inner, up_bias, **options)
    terms = (between.abs() + 1) @ down.abs().T
    return terms if down_bias is None else terms + down_bias.abs()

"""The suite that every implementation of experts must pass, as data and one function.

A probe is a call whose inputs make its features count: products are several times a limit, biases are not zero, some
indices point at no expert, experts have one row, a block of rows less or more than that, or many blocks, and some
have none. In bfloat16 the share of unequal numbers says whether roundings stand where they should: an error in one of
them moves a result by less than its own rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tpu_kernels.ops.experts.cases import SMALL_CASES, ExpertsCase
from tpu_kernels.ops.experts.contract import ExpertsShape
from tpu_kernels.ops.experts.reference import experts_reference

Experts = Callable[..., torch.Tensor]
"""experts(hidden, indices, weights, gate_up, down, gate_up_bias, down_bias, **keywords) on CPU tensors."""

UNEQUAL: Final = 0.02
"""Largest share of unequal results in bfloat16; a rounding too many or too few makes several times as many."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call, on the CPU."""

    name: str
    arguments: tuple[torch.Tensor | None, ...]
    keywords: dict[str, Any]

    @property
    def hidden(self) -> torch.Tensor:
        assert self.arguments[0] is not None
        return self.arguments[0]


@dataclass(frozen=True)
class Mismatch:
    """A probe that an implementation got wrong."""

    probe: str
    message: str

    def __str__(self) -> str:
        return f"{self.probe}: {self.message}"


def make_probe(
    case: ExpertsCase,
    indices: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    name: str | None = None,
    seed: int = 0,
) -> Probe:
    """A call of `case`, with its own indices or those given ([T, K])."""
    generator = torch.Generator().manual_seed(seed)
    shape = case.shape

    def normal(size: tuple[int, ...], spread: float) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) * spread).to(dtype)

    hidden = normal(shape.hidden_shape, 1.0)
    weights = torch.rand(*shape.routing_shape, generator=generator) + 0.1
    gate_up = normal(shape.gate_up_shape, 2.0 * shape.hidden**-0.5)
    down = normal(shape.down_shape, shape.intermediate**-0.5)
    return Probe(
        name=name or case.name,
        arguments=(
            hidden,
            torch.tensor(case.steering()[1] if indices is None else indices.tolist(), dtype=torch.int32),
            weights if case.float_weights else weights.to(dtype),
            gate_up,
            down,
            normal(shape.gate_up_bias_shape, 0.5) if case.bias else None,
            normal(shape.down_bias_shape, 0.5) if case.bias else None,
        ),
        keywords=case.keywords,
    )


def case_probe(case: ExpertsCase, dtype: torch.dtype = torch.float32) -> Probe:
    """A probe of a named case."""
    return make_probe(case, dtype=dtype)


def counted(counts: list[int], top_k: int = 1) -> torch.Tensor:
    """[T, K] indices in which expert e stands counts[e] times, spread over the tokens; the sum fills whole tokens."""
    runs = torch.cat([torch.full((count,), expert) for expert, count in enumerate(counts)])
    return runs.reshape(top_k, -1).t().contiguous()


def edge_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """One token, one expert, no expert, runs of rows around the sizes of blocks, and every activation."""
    plain = ExpertsCase("", "", ExpertsShape(1, 128, 128, 6, 1), "silu")
    biased = replace(plain, bias=True, limit=1.0, up_offset=1.0, interleaved=True)

    def probe(name: str, case: ExpertsCase, indices: torch.Tensor) -> Probe:
        tokens, top_k = indices.shape
        shape = replace(case.shape, tokens=tokens, top_k=top_k)
        return make_probe(replace(case, shape=shape), indices, dtype=dtype, name=name)

    yield probe("one token", plain, torch.tensor([[5, 0]]))
    yield probe("one token of no expert", biased, torch.tensor([[6, 9]]))
    one = replace(plain, shape=replace(plain.shape, num_experts=1))
    yield probe("one expert, many tokens", one, torch.zeros(70, 1, dtype=torch.int64))
    yield probe("runs of 0, 1, 15, 16, 17 and 47", biased, counted([0, 1, 15, 16, 17, 47], 2))
    yield probe("runs of 33, 0, 0, 39, 0, 72", plain, counted([33, 0, 0, 39, 0, 72], 2))
    generator = torch.Generator().manual_seed(1)
    some = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(37)])
    absent = torch.where(torch.rand(some.shape, generator=generator) < 0.4, torch.full_like(some, 6), some)
    yield probe("experts of another device", biased, absent)
    yield probe("experts of another device, float32 weights", replace(plain, float_weights=True), absent)
    yield probe("no expert at all", biased, torch.full((20, 2), 6))
    negative = torch.where(absent == 6, torch.full_like(absent, -1), absent)
    yield probe("negative indices", plain, negative)
    swapped = ExpertsShape(1, 72, 40, 6, 1, transposed=True)
    for name, shape in (
        ("tiny", ExpertsShape(1, 32, 16, 6, 1)),
        ("tiny, transposed", ExpertsShape(1, 32, 16, 6, 1, transposed=True)),
        ("odd sizes", ExpertsShape(1, 72, 40, 6, 1)),
        ("odd sizes, transposed", swapped),
        ("odd sizes, two-layer", replace(swapped, gated=False, transposed=False)),
    ):
        layer = replace(biased, shape=shape, interleaved=shape.gated)
        yield probe(name, layer, some)
    for activation, rounding in zip(
        ("gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"),
        ("each", "last") * 4,
        strict=True,
    ):
        yield probe(
            f"{activation}, rounding {rounding}",
            replace(plain, activation=activation, rounding=rounding, up_offset=0.5),
            some,
        )


def all_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every probe of the suite: the named cases of real models and the edges."""
    for case in SMALL_CASES:
        yield case_probe(case, dtype)
    yield from edge_probes(dtype)


def check_probe(experts: Experts, probe: Probe) -> Mismatch | None:
    """What `experts` gets wrong of one probe, compared with the reference in the probe's own dtype.

    bfloat16: the largest error is an ulp of the largest result, and few results differ at all. float32: sums of some
    hundred terms in another order are off by some tens of units of the largest result.
    """
    got = experts(*probe.arguments, **probe.keywords)
    wanted = experts_reference(*probe.arguments, **probe.keywords)  # type: ignore[arg-type]
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return Mismatch(probe.name, f"expected {wanted.dtype} {list(wanted.shape)}, got {got.dtype} {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return Mismatch(probe.name, f"{int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    largest = float(wanted.abs().max())
    unit = torch.finfo(wanted.dtype).eps
    allowed = unit * largest * (1 if wanted.dtype == torch.bfloat16 else 64)
    error = (got.double() - wanted.double()).abs()
    if float(error.max()) > allowed:
        place = [int(at) for at in torch.unravel_index(error.argmax(), error.shape)]
        return Mismatch(probe.name, f"off by {float(error.max()):.3g} at [t, h] = {place}, allowed {allowed:.3g}")
    unequal = float((got != wanted).double().mean())
    if wanted.dtype == torch.bfloat16 and unequal > UNEQUAL:
        return Mismatch(probe.name, f"{unequal:.0%} of the results differ, allowed {UNEQUAL:.0%}")
    return None


def run_suite(experts: Experts, probes: Iterable[Probe]) -> list[Mismatch]:
    """Every mismatch of `experts` over `probes`; an empty list is a pass. What `experts` raises is not caught."""
    return [mismatch for probe in probes if (mismatch := check_probe(experts, probe)) is not None]

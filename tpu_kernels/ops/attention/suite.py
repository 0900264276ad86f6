"""The suite that every implementation of static attention must pass, as data and one function.

A probe is a call whose inputs make its features count: under a softcap the logits are large, sinks are not zero,
windows are shorter than what is cached, rows begin and end at, just before and just after the edges of blocks, some
rows are empty, and whatever lies outside of a row's interval is large, so that a key too many is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from tpu_kernels.ops.attention.cases import SMALL_CASES, AttentionCase
from tpu_kernels.ops.attention.contract import AttentionShape
from tpu_kernels.ops.attention.reference import static_attention_reference

Attend = Callable[..., torch.Tensor]
"""attend(query, key, value, bounds, sinks, *, scale, softcap) on CPU tensors."""

EDGE = 128
"""Every implementation cuts keys at multiples of this, or at no place at all."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One call, on the CPU."""

    name: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bounds: torch.Tensor
    sinks: torch.Tensor | None
    scale: float
    softcap: float | None


@dataclass(frozen=True)
class Mismatch:
    """A probe that an implementation got wrong."""

    probe: str
    message: str

    def __str__(self) -> str:
        return f"{self.probe}: {self.message}"


def make_probe(
    name: str,
    shape: AttentionShape,
    intervals: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Probe:
    """A call of `shape` whose row t of batch b sees the keys of `intervals` [B, T, 2]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    # Logits with a spread of about 3, or of about the softcap where there is one: there a cap that is left out
    # changes every weight.
    spread = 3.0 if softcap is None else softcap
    query = normal(*shape.query_shape) * (spread / (scale * shape.key_dim**0.5))
    key, value = normal(*shape.key_shape), normal(*shape.value_shape)
    seen = torch.zeros(shape.batch, shape.length, dtype=torch.bool)
    for row in range(shape.batch):
        for start, end in intervals[row].tolist():
            seen[row, start:end] = True
    # Keys and values that nobody sees: the rest of a cache, left over from another prompt.
    stale = ~seen[:, None, :, None]
    key = torch.where(stale, 4 * key, key)
    value = torch.where(stale, value + 50.0, value)
    return Probe(
        name=name,
        query=query.to(dtype),
        key=key.to(dtype),
        value=value.to(dtype),
        bounds=intervals.to(torch.int32).unsqueeze(1).contiguous(),
        sinks=(2.0 + normal(shape.query_heads)) if sinks else None,
        scale=scale,
        softcap=softcap,
    )


def causal_intervals(queries: int, *, starts: list[int], ends: list[int], window: int | None = None) -> torch.Tensor:
    """Bounds [B, T, 2] of a chunk of `queries` tokens whose last one is key `ends[b]` - 1.

    Row b is left-padded up to `starts[b]`; a query sees itself and the `window` - 1 keys before it. Queries that lie
    in the padding see nothing.
    """
    rows = []
    for start, end in zip(starts, ends, strict=True):
        last = torch.arange(end - queries + 1, end + 1)
        first = torch.full_like(last, start) if window is None else (last - window).clamp_min(start)
        rows.append(torch.stack([first, last.clamp_min(0)], dim=-1))
    return torch.stack(rows)


def case_probe(case: AttentionCase, dtype: torch.dtype = torch.float32) -> Probe:
    """A probe of a named case: one row left-padded, the other not, neither reaching the end of the cache."""
    shape = case.shape
    starts = [5 if row % 2 else 0 for row in range(shape.batch)]
    ends = [shape.length * 3 // 4 - 37 * row - 1 for row in range(shape.batch)]
    intervals = causal_intervals(shape.queries, starts=starts, ends=ends, window=case.window)
    return make_probe(
        case.name,
        shape,
        intervals,
        scale=case.scale,
        softcap=case.softcap,
        sinks=case.sinks,
        dtype=dtype,
    )


def edge_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Lengths of 1, block edges and their neighbours, empty rows, odd cache lengths, odd groups and head sizes."""
    edges = [1, EDGE - 1, EDGE, EDGE + 1, 2 * EDGE - 1, 2 * EDGE, 2 * EDGE + 1, 3 * EDGE]
    inside = [[0, end] for end in edges] + [[end - 1, 3 * EDGE] for end in edges]
    empty_at = {0, 5, 6, len(inside) + 2}  # the first, two in a row, the last
    rows = list(inside)
    for at in sorted(empty_at):
        rows.insert(at, [at, at])
    decode = torch.tensor(rows)[:, None]

    def probe(
        name: str,
        shape: AttentionShape,
        intervals: torch.Tensor,
        sinks: bool = False,
        softcap: float | None = None,
    ) -> Probe:
        return make_probe(name, shape, intervals, scale=0.3, sinks=sinks, softcap=softcap, dtype=dtype)

    for name, sinks, softcap, dim in (("edges", False, None, 128), ("edges, sinks and softcap", True, 4.0, 64)):
        shape = AttentionShape(len(rows), 6, 2, 1, 3 * EDGE, dim, dim)
        yield probe(f"decode, {name}", shape, decode, sinks=sinks, softcap=softcap)

    window, chunk = 9, 40
    ends = [chunk - 8, EDGE, EDGE + 20, 3 * EDGE, 3 * EDGE]  # the first begins before the cache: 8 empty rows
    starts = [0, EDGE - 3, 10, 3 * EDGE - 1, EDGE - 28]
    for name, width, sinks, dim in (("edges", None, False, 128), ("edges, window and sinks", window, True, 64)):
        intervals = causal_intervals(chunk, starts=starts, ends=ends, window=width)
        shape = AttentionShape(5, 6, 2, chunk, 3 * EDGE, dim, dim)
        yield probe(f"prefill, {name}", shape, intervals, sinks=sinks)

    nothing = torch.zeros(2, 1, 2, dtype=torch.int64)
    yield probe("decode, all rows empty", AttentionShape(2, 4, 2, 1, EDGE, 64, 64), nothing, sinks=True)
    for length, queries, group, key_dim, value_dim in (
        (40, 1, 1, 16, 16),
        (200, 1, 7, 80, 48),
        (300, 1, 3, 128, 256),
        (200, 5, 1, 128, 128),
        (40, 33, 12, 96, 64),
    ):
        phase = "decode" if queries == 1 else "prefill"
        intervals = causal_intervals(queries, starts=[2, 0], ends=[length, length - 3], window=150)
        shape = AttentionShape(2, group, 1, queries, length, key_dim, value_dim)
        name = f"{phase}, cache of {length}, group of {group}, heads {key_dim} and {value_dim}"
        yield probe(name, shape, intervals)


def all_probes(dtype: torch.dtype = torch.float32) -> Iterator[Probe]:
    """Every probe of the suite: the named cases of real models and the edges."""
    for case in SMALL_CASES:
        yield case_probe(case, dtype)
    yield from edge_probes(dtype)


def tolerance(probe: Probe) -> float:
    """Largest absolute error that rounding explains, from the dtype and the size of the numbers.

    bfloat16: the weights and the result are rounded once each, so twice half a unit in the last place of the
    largest visible value. float32: an error of a few units in a logit of size L changes a weight by a few times L
    units.
    """
    visible = probe.value[..., :].float().abs()
    largest = float(visible[_seen(probe)].max()) if bool(_seen(probe).any()) else 0.0
    unit = torch.finfo(probe.query.dtype).eps
    if probe.query.dtype == torch.bfloat16:
        return 1.25 * unit * largest
    logit = probe.softcap or 20.0
    return 16 * unit * (1 + logit) * largest


def _seen(probe: Probe) -> torch.Tensor:
    """[B, Hkv, S]: keys that some query of the row sees."""
    position = torch.arange(probe.key.shape[2])
    inside = (position >= probe.bounds[..., 0:1]) & (position < probe.bounds[..., 1:2])
    return inside.any(dim=2).expand(-1, probe.key.shape[1], -1)


def check_probe(attend: Attend, probe: Probe) -> Mismatch | None:
    """What `attend` gets wrong of one probe. The reference is computed in float64 from the same inputs."""
    got = attend(
        probe.query, probe.key, probe.value, probe.bounds, probe.sinks, scale=probe.scale, softcap=probe.softcap
    )
    wanted = static_attention_reference(
        probe.query.double(),
        probe.key.double(),
        probe.value.double(),
        probe.bounds,
        None if probe.sinks is None else probe.sinks.double(),
        scale=probe.scale,
        softcap=probe.softcap,
    )
    if got.shape != wanted.shape or got.dtype != probe.query.dtype:
        return Mismatch(
            probe.name,
            f"expected {probe.query.dtype} {list(wanted.shape)}, got {got.dtype} {list(got.shape)}",
        )
    if not bool(torch.isfinite(got).all()):
        return Mismatch(probe.name, f"{int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    empty = (probe.bounds[..., 1] <= probe.bounds[..., 0]).expand(-1, got.shape[1], -1)
    if bool(got[empty].any()):
        return Mismatch(probe.name, "a row that sees no key is not zero")
    error = (got.double() - wanted).abs()
    allowed = tolerance(probe)
    if float(error.max()) > allowed:
        place = [int(i) for i in torch.unravel_index(error.argmax(), error.shape)]
        return Mismatch(probe.name, f"off by {float(error.max()):.3g} at [b, h, t, d] = {place}, allowed {allowed:.3g}")
    return None


def run_suite(attend: Attend, probes: Iterable[Probe]) -> list[Mismatch]:
    """Every mismatch of `attend` over `probes`; an empty list is a pass. What `attend` raises is not caught."""
    return [mismatch for probe in probes if (mismatch := check_probe(attend, probe)) is not None]

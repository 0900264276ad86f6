"""The estimate against published timings of a v5e.

JAX's documentation (jax-ml/jax, docs/pallas/tpu/matmul.ipynb) times bfloat16 products of square matrices on a TPU v5e
and prints the utilization that it works out from them, for a Pallas kernel and for XLA's own product. The timings were
taken around single calls and hold the time to dispatch one.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.lab.cost.compiled import job, scheduled
from tpu_kernels.lab.cost.compiling import ScheduledJob
from tpu_kernels.lab.cost.timing import COPY_LATENCY, hbm_bandwidth

DISPATCH = 110e-6
"""Seconds that a call takes beside its program: not published, but nearly all that a product of size 1024 takes."""

WIDE = (512, 1024, 1024)
NARROW = (128, 128, 128)
PUBLISHED = {
    # blocks of m, n and k (None: XLA's own), size, seconds
    (WIDE, 1024): 127.1e-6,
    (WIDE, 4096): 889.1e-6,
    (WIDE, 8192): 6099.4e-6,
    (NARROW, 1024): 297.7e-6,
    (None, 1024): 119.4e-6,
    (None, 4096): 827.3e-6,
    (None, 8192): 6047.1e-6,
}


@pytest.fixture(scope="module")
def products() -> dict[Any, ScheduledJob]:
    jobs = []
    for blocks, size in PUBLISHED:
        square = ((size, size), "bfloat16")
        if blocks is None:
            jobs.append(job("xla_matmul", square, square))
        else:
            block_m, block_n, block_k = blocks
            jobs.append(job("matmul", square, square, block_m=block_m, block_n=block_n, block_k=block_k))
    return dict(zip(PUBLISHED, scheduled("v5e", jobs), strict=True))


@pytest.mark.parametrize(("blocks", "size"), PUBLISHED)
def test_matmul_on_v5e(products: dict[Any, ScheduledJob], blocks: tuple[int, ...] | None, size: int) -> None:
    cost, published = products[blocks, size].cost(), PUBLISHED[blocks, size]
    estimate = cost.seconds + DISPATCH
    print(f"{blocks or 'XLA'} {size}: {1e6 * estimate:.0f} us, published {1e6 * published:.0f}")
    assert cost.without_schedule == ()
    assert estimate == pytest.approx(published, rel=0.1)
    assert cost.seconds >= 2 * size**3 / cost.chip.peak_bf16_flops


@pytest.mark.parametrize(("blocks", "size"), [(WIDE, 4096), (WIDE, 8192), (NARROW, 1024)])
def test_a_pipeline_takes_what_its_formula_says(products: dict[Any, ScheduledJob], blocks: Any, size: int) -> None:
    """Two buffers: a step takes the longest of its bundles, its copies, and half of both and the latency together."""
    result = products[blocks, size]
    (op,) = result.cost().ops
    assert op.trace is not None
    steps = size**3 // math.prod(blocks)
    compute = op.trace.busy_cycles / steps / result.chip.clock_hz
    copies = op.trace.hbm_bytes / steps / hbm_bandwidth(result.chip)
    step = max(compute, copies, (compute + COPY_LATENCY + copies) / 2)
    fill_and_drain = 2 * (COPY_LATENCY + copies)
    assert op.seconds == pytest.approx(steps * step + fill_and_drain, rel=0.05)

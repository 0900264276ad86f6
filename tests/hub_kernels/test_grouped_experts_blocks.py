"""How the kernel cuts its work: sizes that fit every generation, and clear errors for sizes that cannot be."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hub_kernels.test_grouped_experts_few import KERNEL
from tpu_kernels.chips import CHIPS
from tpu_kernels.lab.jax_source import load_source

SOURCE = load_source(KERNEL)
BLOCKS = sys.modules[SOURCE.choose_blocks.__module__]
CHOOSE = BLOCKS.choose_blocks
SIZES = {"hidden": 2048, "intermediate": 768, "gated": True, "itemsize": 2}


@settings(max_examples=200, deadline=None)
@given(
    hidden=st.integers(1, 512).map(lambda tiles: tiles * 16),
    intermediate=st.integers(1, 1024).map(lambda tiles: tiles * 16),
    gated=st.booleans(),
    sums=st.tuples(st.booleans(), st.booleans()),
    itemsize=st.sampled_from([2, 4]),
    tile=st.sampled_from([1, 16, 128, 256]),
)
def test_whatever_the_sizes_blocks_divide_them(hidden, intermediate, gated, sums, itemsize, tile) -> None:
    product = 2 * intermediate if gated else intermediate
    up = (hidden, product, True) if sums[0] else (product, hidden, False)
    down = (intermediate, hidden, True) if sums[1] else (hidden, intermediate, False)
    sizes = {"hidden": hidden, "intermediate": intermediate, "gated": gated, "itemsize": itemsize}
    blocks = CHOOSE(up=up, down=down, tile=tile, **sizes)
    for weight in (blocks.up, blocks.down):
        assert weight.rows % weight.block == 0
        assert weight.steps == 1 or weight.block % (16 if weight.sums_rows else 128) == 0
    assert tile % blocks.rows == 0
    assert blocks.num_buffers in (2, 3)
    assert blocks.vmem_bytes <= min(CHIPS[name].vmem_bytes for name in ("v5e", "v5p", "v6e", "tpu7x"))


def test_copies_are_of_some_megabytes() -> None:
    blocks = CHOOSE(up=(1536, 2048, False), down=(2048, 768, False), tile=8, **SIZES)
    assert [(one.block * one.columns * 2) / 2**20 for one in (blocks.up, blocks.down)] == [3.0, 3.0]
    assert blocks.num_buffers == 3
    small = CHOOSE(up=(1536, 2048, False), down=(2048, 768, False), tile=8, **SIZES, block_bytes=2**20, num_buffers=2)
    assert (small.up.steps, small.down.steps, small.num_buffers) == (6, 4, 2)


@pytest.mark.parametrize(
    ("shape", "swapped"),
    [((5760, 2880), True), ((2880, 5760), False), ((2880, 2880), False), ((2688, 1856), True), ((64, 32), True)],
)
def test_which_weights_xla_stores_swapped(shape: tuple[int, int], swapped: bool) -> None:
    assert BLOCKS.lies_swapped(*shape) == swapped


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"num_buffers": 1}, "num_buffers must be 2 or more; got 1"),
        ({"block_bytes": 0}, "block_bytes must be 1 or more"),
    ],
)
def test_impossible_tuning(tuning: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CHOOSE(up=(1536, 2048, False), down=(2048, 768, False), tile=8, **SIZES, **tuning)

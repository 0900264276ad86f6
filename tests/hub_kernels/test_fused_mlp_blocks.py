"""How the kernel cuts its work: sizes that fit every generation, and clear errors for sizes that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hub_kernels.fused_mlp import SOURCE
from tpu_kernels.chips import CHIPS
from tpu_kernels.lab.jax_source import load_source

KERNEL = load_source(SOURCE)
CHOOSE = KERNEL.choose_blocks
PLAIN = {
    "rows": 8,
    "hidden": 4096,
    "intermediate": 12288,
    "out": 4096,
    "products": 3,
    "multiple": 128,
    "itemsize": 2,
}


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 10_000),
    hidden=st.integers(16, 16_384),
    intermediate=st.integers(16, 60_000),
    products=st.sampled_from([2, 3]),
    multiple=st.sampled_from([16, 128]),
    itemsize=st.sampled_from([2, 4]),
    no_rest=st.booleans(),
)
def test_whatever_the_shape_the_blocks_are_legal_and_fit(
    rows, hidden, intermediate, products, multiple, itemsize, no_rest
) -> None:
    if no_rest:
        intermediate = -(-intermediate // multiple) * multiple
    blocks = CHOOSE(
        rows=rows,
        hidden=hidden,
        intermediate=intermediate,
        out=hidden,
        products=products,
        multiple=multiple,
        itemsize=itemsize,
        no_rest=no_rest,
    )
    assert 1 <= blocks.rows <= min(rows, 512)
    assert blocks.rows == rows or blocks.rows % 16 == 0
    assert 1 <= blocks.inner <= intermediate
    assert blocks.inner == intermediate or blocks.inner % multiple == 0
    assert not no_rest or intermediate % blocks.inner == 0
    weights = 2 * products * blocks.inner * hidden * itemsize
    rows_and_sums = blocks.rows * hidden * (2 * itemsize + 4)
    assert weights + rows_and_sums < blocks.vmem_bytes
    assert blocks.vmem_bytes <= min(CHIPS[name].vmem_bytes for name in ("v5e", "v5p", "v6e", "tpu7x"))


def test_weights_are_read_once_for_many_rows() -> None:
    assert CHOOSE(**PLAIN)[:2] == (8, 256)
    assert CHOOSE(**{**PLAIN, "rows": 512})[:2] == (512, 256)
    assert CHOOSE(**{**PLAIN, "rows": 600})[:2] == (304, 256)
    assert CHOOSE(**{**PLAIN, "rows": 4096})[0] == 512
    assert CHOOSE(**{**PLAIN, "hidden": 1024, "out": 1024, "intermediate": 3072})[:2] == (8, 512)


def test_slices_are_wide_enough_for_two_matrix_units() -> None:
    """A gated MLP has two products for them to share, another has one."""
    assert CHOOSE(**{**PLAIN, "products": 2})[:2] == (8, 512)
    assert CHOOSE(**{**PLAIN, "products": 2, "hidden": 1600, "out": 1600, "intermediate": 6400})[1] == 512


def test_slices_without_a_rest_where_there_are_any() -> None:
    narrow = {**PLAIN, "hidden": 1024, "out": 1024}
    assert CHOOSE(**{**narrow, "intermediate": 2816})[1] == 256
    assert CHOOSE(**{**narrow, "intermediate": 13696})[1] == 512, "107 tiles: 26 slices and a rest"
    assert CHOOSE(**{**narrow, "intermediate": 13696}, no_rest=True)[1] == 128
    assert CHOOSE(**{**narrow, "intermediate": 400})[1] == 400, "all of it in one"


def test_other_sizes_make_room_for_one_that_is_given() -> None:
    assert CHOOSE(**PLAIN, block_i=512)[:2] == (8, 512)
    assert CHOOSE(**{**PLAIN, "rows": 512}, block_i=512)[:2] == (256, 512)
    assert CHOOSE(**PLAIN, block_i=99_999, block_rows=64)[:2] == (8, 12288)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_i": 100}, "block_i must be a positive multiple of 128; got 100"),
        ({"block_i": 0}, "block_i must be a positive multiple of 128; got 0"),
        ({"rows": 64, "block_rows": 24}, "block_rows must be a positive multiple of 16; got 24"),
        ({"block_i": 640, "no_rest": True}, "block_i must divide the 12288 intermediate positions here; got 640"),
    ],
)
def test_impossible_tuning(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        CHOOSE(**{**PLAIN, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((10944, 2048), False),
        ((2048, 10944), True),
        ((6400, 1600), True),
        ((1600, 6400), False),
        ((4304, 1152), False),
        ((100, 60), True),
        ((37, 64), False),
        ((200, 200), False),
        ((2000, 192), True),
    ],
)
def test_the_layouts_that_libtpu_chooses(shape: tuple[int, int], wanted: bool) -> None:
    assert KERNEL.lies_transposed(*shape) is wanted

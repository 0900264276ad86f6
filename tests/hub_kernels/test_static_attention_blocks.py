"""How the kernel cuts its work: sizes that fit every generation, and clear errors for sizes that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_kernels.chips import CHIPS
from tpu_kernels.lab.jax_source import STATIC_ATTENTION, load_source

CHOOSE = load_source(STATIC_ATTENTION).choose_blocks
PLAIN = {"kv_heads": 8, "group": 2, "queries": 64, "length": 4096, "key_dim": 128, "value_dim": 128, "itemsize": 2}


@settings(max_examples=200, deadline=None)
@given(
    kv_heads=st.integers(1, 128),
    group=st.integers(1, 128),
    tiles=st.integers(1, 64),
    length=st.integers(1, 64).map(lambda tiles: tiles * 128),
    key_dim=st.integers(1, 32).map(lambda tiles: tiles * 8),
    value_dim=st.integers(1, 32).map(lambda tiles: tiles * 8),
    itemsize=st.sampled_from([2, 4]),
    decode=st.booleans(),
)
def test_whatever_the_shape_the_blocks_divide_it_and_fit(
    kv_heads, group, tiles, length, key_dim, value_dim, itemsize, decode
) -> None:
    queries, inner = (group, 1) if decode else (tiles * 16, group)
    blocks = CHOOSE(
        kv_heads=kv_heads,
        group=inner,
        queries=queries,
        length=length,
        key_dim=key_dim,
        value_dim=value_dim,
        itemsize=itemsize,
        decode=decode,
    )
    assert queries % blocks.block_q == 0
    assert kv_heads % blocks.heads == 0
    assert blocks.block_k % 128 == 0
    assert blocks.block_k <= length
    assert blocks.num_buffers >= 2
    ring = blocks.num_buffers * blocks.heads * blocks.block_k * (key_dim + value_dim) * itemsize
    assert ring <= 12 * 2**20
    assert blocks.vmem_bytes <= min(CHIPS[name].vmem_bytes for name in ("v5e", "v5p", "v6e", "tpu7x"))


def test_decode_takes_all_heads_in_one_step_where_they_fit() -> None:
    assert CHOOSE(**PLAIN, decode=True).heads == 8
    assert CHOOSE(**PLAIN, decode=True).block_k == 512
    assert CHOOSE(**{**PLAIN, "kv_heads": 1}, decode=True).block_k == 2048
    assert CHOOSE(**{**PLAIN, "kv_heads": 1, "length": 640}, decode=True).block_k == 640
    assert CHOOSE(**PLAIN, decode=False).heads == 1


def test_other_sizes_make_room_for_one_that_is_given() -> None:
    wide = {**PLAIN, "kv_heads": 32, "itemsize": 4}
    assert CHOOSE(**wide, decode=True)[1:4] == (128, 32, 3)
    assert CHOOSE(**wide, decode=True, block_k=1024)[1:4] == (1024, 4, 2)
    assert CHOOSE(**wide, decode=True, block_k=1024, num_buffers=3)[1:4] == (1024, 4, 3)


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"block_k": 100}, "block_k must be a positive multiple of 128; got 100"),
        ({"block_k": 0}, "block_k must be a positive multiple of 128; got 0"),
        ({"block_q": 48}, "block_q must divide the 64 padded queries and be a multiple of 16; got 48"),
        ({"block_q": 8}, "multiple of 16; got 8"),
        ({"num_buffers": 1}, "num_buffers must be 2 or more; got 1"),
    ],
)
def test_impossible_tuning(tuning: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        CHOOSE(**PLAIN, decode=False, **tuning)
    assert message in str(caught.value)

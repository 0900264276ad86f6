"""How a call of static attention is cut up: sizes of blocks, and the VMEM that they take."""

from __future__ import annotations

from typing import NamedTuple

LANES = 128
SUBLANES = 16  # second-minor tile of bfloat16; also a multiple of the one of float32
MAX_ROWS = 1024  # query rows (group x block_q) of one grid step
MIN_BLOCK_K = 128
DEFAULT_BLOCK_K = 512
MAX_BLOCK_K = 2048  # the longest block chosen here; only few and small heads need it
MIN_COPY_BYTES = 2**20  # keys and values of a decode block: less does not hide the latency of the products
DEFAULT_BUFFERS = 3
BUFFER_BUDGET = 12 * 2**20  # bytes of VMEM for the ring of key/value buffers
HEADS_TOGETHER = 8
SCORE_BUDGET = 2 * 2**20  # bytes of the float32 scores [heads together, rows, block_k]
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Blocks(NamedTuple):
    """How one call is cut up; every field is a compile-time constant."""

    block_q: int  # query positions of a grid step
    block_k: int  # key positions of one copy
    heads: int  # key/value heads of a grid step
    num_buffers: int
    vmem_bytes: int  # limit handed to the compiler


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tile_bytes(rows: int, columns: int, itemsize: int) -> int:
    return round_up(rows, SUBLANES) * round_up(columns, LANES) * itemsize


def heads_together(heads: int) -> int:
    """How many of a step's key/value heads have their products and softmax interleaved: a divisor of them."""
    return next(n for n in range(min(heads, HEADS_TOGETHER), 0, -1) if heads % n == 0)


def choose_blocks(
    *,
    kv_heads: int,
    group: int,
    queries: int,
    length: int,
    key_dim: int,
    value_dim: int,
    itemsize: int,
    decode: bool,
    block_q: int | None = None,
    block_k: int | None = None,
    num_buffers: int | None = None,
) -> Blocks:
    """Block sizes that fit the VMEM of every generation.

    `length` is the padded cache length. A size given by the caller is taken as it is, cut to the
    length of the dimension, and the sizes that are not given make room for it; ValueError if it is no
    multiple of what the layout needs.
    """
    if block_q is None:
        block_q = queries
        if not decode:
            widest = max(SUBLANES, MAX_ROWS // group // SUBLANES * SUBLANES)
            steps = -(-queries // widest)
            while queries % (steps * SUBLANES) != 0:
                steps += 1
            block_q = queries // steps
    block_q = min(block_q, queries)
    if queries % block_q or (not decode and block_q % SUBLANES):
        raise ValueError(
            f"block_q must divide the {queries} padded queries and be a multiple of {SUBLANES}; got {block_q}"
        )
    if num_buffers is not None and num_buffers < 2:
        raise ValueError(f"num_buffers must be 2 or more; got {num_buffers}")
    rows = block_q * group
    widths = (key_dim, value_dim)  # of one key position of one head, as it lies in VMEM
    position_bytes = sum(round_up(w, SUBLANES if w % LANES else LANES) for w in widths) * itemsize

    buffers = num_buffers or DEFAULT_BUFFERS
    heads = kv_heads if decode else 1

    def ring_bytes(block: int) -> int:
        return buffers * heads * block * position_bytes

    def score_bytes(block: int) -> int:
        return heads_together(heads) * _tile_bytes(rows, block, 4)

    least = min(block_k or MIN_BLOCK_K, length)
    while num_buffers is None and buffers > 2 and ring_bytes(least) > BUFFER_BUDGET:
        buffers -= 1
    while heads > 1 and ring_bytes(least) > BUFFER_BUDGET:
        heads = next(h for h in range(heads - 1, 0, -1) if kv_heads % h == 0)
    if block_k is None:
        block_k = DEFAULT_BLOCK_K
        while decode and block_k < MAX_BLOCK_K and ring_bytes(block_k) < buffers * MIN_COPY_BYTES:
            block_k *= 2
        while block_k > MIN_BLOCK_K and (ring_bytes(block_k) > BUFFER_BUDGET or score_bytes(block_k) > SCORE_BUDGET):
            block_k //= 2
    elif block_k < 1 or (block_k < length and block_k % MIN_BLOCK_K):
        raise ValueError(f"block_k must be a positive multiple of {MIN_BLOCK_K}; got {block_k}")
    block_k = min(block_k, length)

    ring = ring_bytes(round_up(block_k, LANES))
    query_bytes = 2 * heads * _tile_bytes(rows, key_dim, itemsize)
    out_bytes = 2 * heads * _tile_bytes(rows, value_dim, itemsize)
    state = heads * (2 * _tile_bytes(rows, LANES, 4) + _tile_bytes(rows, value_dim, 4))
    scores = 5 * score_bytes(block_k)
    need = ring + query_bytes + out_bytes + state + scores
    limit = min(max(need + need // 2 + 2**21, VMEM_FLOOR), VMEM_CEILING)
    return Blocks(block_q, block_k, heads, buffers, limit)

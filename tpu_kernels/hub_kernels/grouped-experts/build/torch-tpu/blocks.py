"""How a call of experts is cut up: rows of a visit, rows of weights in one copy, and the VMEM that they take."""

from __future__ import annotations

from typing import NamedTuple

LANES = 128
ROWS = 16  # second-minor tile of bfloat16; also a multiple of the one of float32
PRODUCT_ROWS = 128  # rows of one matrix product
COPY_BYTES = 3 * 2**20  # of weights, in one copy
ROWS_BUDGET = 32 * 2**20  # bytes of VMEM for the rows of a visit
VMEM_BUDGET = 50 * 2**20  # bytes of VMEM for those and both rings of weight buffers
DEFAULT_BUFFERS = 3
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Weight(NamedTuple):
    """How one of an expert's two matrices lies in memory, and is copied."""

    rows: int
    columns: int
    sums_rows: bool  # the product sums over the rows, and not over the columns
    block: int  # rows of one copy

    @property
    def steps(self) -> int:
        return self.rows // self.block


class Blocks(NamedTuple):
    """How one call is cut up; every field is a compile-time constant."""

    up: Weight
    down: Weight
    tile: int  # rows of hidden of one visit of an expert
    rows: int  # rows of one product, a divisor of `tile`
    num_buffers: int
    vmem_bytes: int  # limit handed to the compiler


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def tile_bytes(rows: int, columns: int, itemsize: int) -> int:
    return round_up(rows, 32 // itemsize) * round_up(columns, LANES) * itemsize


def lies_swapped(rows: int, columns: int) -> bool:
    """Whether XLA stores a [..., rows, columns] array with its last two dimensions swapped: where that pads less."""

    def padded(minor: int, second: int) -> int:
        return round_up(minor, LANES) * round_up(second, 8)

    return padded(rows, columns) < padded(columns, rows)


def weight_block(rows: int, columns: int, sums_rows: bool, itemsize: int, wanted: int) -> int:
    """Rows of one copy: a divisor of `rows` that makes copies of nearly `wanted` bytes, or all rows.

    Rows that are summed over may be cut at sublanes; rows that become columns of the product at lanes.
    """
    step = ROWS if sums_rows else LANES
    size = tile_bytes(1, columns, itemsize) // (32 // itemsize)
    fits = [rows, *(block for block in range(step, rows, step) if rows % block == 0)]
    return min(fits, key=lambda block: max(block * size / wanted, wanted / (block * size)))


def choose_blocks(
    *,
    up: tuple[int, int, bool],
    down: tuple[int, int, bool],
    hidden: int,
    intermediate: int,
    gated: bool,
    tile: int,
    itemsize: int,
    block_bytes: int | None = None,
    num_buffers: int | None = None,
) -> Blocks:
    """Block sizes for visits of `tile` rows. `up` and `down`: rows, columns, and whether rows are summed over."""
    if num_buffers is not None and num_buffers < 2:
        raise ValueError(f"num_buffers must be 2 or more; got {num_buffers}")
    if block_bytes is not None and block_bytes < 1:
        raise ValueError(f"block_bytes must be 1 or more; got {block_bytes}")
    wanted = block_bytes or COPY_BYTES
    while True:
        weights = [Weight(*one, weight_block(*one, itemsize, wanted)) for one in (up, down)]
        copied = sum(tile_bytes(one.block, one.columns, itemsize) for one in weights)
        between = rows_bytes(*weights, hidden, intermediate, gated, tile, itemsize)
        buffers = num_buffers or (DEFAULT_BUFFERS if DEFAULT_BUFFERS * copied + between <= VMEM_BUDGET else 2)
        ring = buffers * copied
        if ring + between <= VMEM_BUDGET or block_bytes is not None or wanted < 2**18:
            break
        wanted //= 2
    need = ring + between
    limit = min(max(need + need // 4 + 8 * 2**20, VMEM_FLOOR), VMEM_CEILING)
    rows = PRODUCT_ROWS if tile % PRODUCT_ROWS == 0 else tile
    return Blocks(weights[0], weights[1], tile, rows, buffers, limit)


def rows_bytes(up: Weight, down: Weight, hidden: int, intermediate: int, gated: bool, tile: int, itemsize: int) -> int:
    """Bytes of VMEM for the rows of a visit: hidden twice, the first product, the activation, the result."""
    product = (2 if gated else 1) * intermediate
    total = 4 * tile_bytes(tile, hidden, itemsize)
    total += tile_bytes(tile, product, 4 if up.sums_rows else itemsize)
    total += tile_bytes(tile, intermediate, itemsize) * (up.sums_rows + down.sums_rows)
    total += tile_bytes(tile, hidden, itemsize) if up.sums_rows else 0
    return total + tile_bytes(tile, hidden, 4)

"""How a call of an MLP is cut up: rows and slices of the intermediate dimension, and the VMEM that they take."""

from __future__ import annotations

from typing import NamedTuple

LANES = 128
SUBLANES = 16  # second-minor tile of bfloat16; also a multiple of the one of float32
MAX_ROWS = 512  # rows of one pass over the weights
MIN_ROWS = 64  # fewer are not worth a further pass; narrower slices make room instead
STEP_BYTES = 3 * 2**20  # weights of one grid step: enough to hide the latency of a copy
LEAST_COLUMNS = 512  # of the first products of a step: less leaves one of two matrix units of 256 columns idle
MAX_BLOCK_I = 512
VMEM_BUDGET = 48 * 2**20
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Blocks(NamedTuple):
    """How one call is cut up; every field is a compile-time constant."""

    rows: int  # rows of x of one grid step
    inner: int  # intermediate positions of one grid step
    vmem_bytes: int  # limit handed to the compiler


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tile_bytes(rows: int, columns: int, itemsize: int) -> int:
    return round_up(rows, SUBLANES) * round_up(columns, LANES) * itemsize


def lies_transposed(rows: int, columns: int) -> bool:
    """Whether XLA stores an array [rows, columns] column by column, because that pads it less."""
    return round_up(columns, 8) * round_up(rows, LANES) < round_up(rows, 8) * round_up(columns, LANES)


def _cut(length: int, least: int, widest: int, multiple: int, no_rest: bool) -> int:
    """The block of a dimension: all of it, or a divisor that is near `widest`, or `widest` with a rest."""
    if length <= widest:
        return length
    widest = widest // multiple * multiple
    narrowest = multiple if no_rest else min(max(least, widest // 2), widest)
    divisors = range(widest, narrowest - 1, -multiple)
    return next((size for size in divisors if length % size == 0), widest)


def choose_blocks(
    *,
    rows: int,
    hidden: int,
    intermediate: int,
    out: int,
    products: int,
    multiple: int,
    itemsize: int,
    no_rest: bool = False,
    block_rows: int | None = None,
    block_i: int | None = None,
) -> Blocks:
    """Block sizes that fit the VMEM of every generation.

    `products` is 3 for a gated MLP and 2 for one without a gate. `multiple` is what a slice of the intermediate
    dimension must be a multiple of, unless it is the whole dimension; with `no_rest` it must divide the dimension
    too, which is then a multiple of `multiple`. A size given by the caller is taken as it is, cut to the length of the
    dimension; ValueError if the layout does not allow it.
    """
    for name, given, length, unit in (
        ("block_rows", block_rows, rows, SUBLANES),
        ("block_i", block_i, intermediate, multiple),
    ):
        if given is not None and (given < 1 or (given < length and given % unit)):
            raise ValueError(f"{name} must be a positive multiple of {unit}; got {given}")
    if no_rest and block_i is not None and intermediate % min(block_i, intermediate):
        raise ValueError(f"block_i must divide the {intermediate} intermediate positions here; got {block_i}")

    def need(block: int, inner: int) -> int:
        weights = 2 * ((products - 1) * _tile_bytes(inner, hidden, itemsize) + _tile_bytes(inner, out, itemsize))
        buffers = 1 if block == rows else 2
        passing = buffers * (_tile_bytes(block, hidden, itemsize) + _tile_bytes(block, out, itemsize))
        between = (products + 1) * _tile_bytes(block, inner, 4)
        return weights + passing + between + 2 * _tile_bytes(block, out, 4)

    position = ((products - 1) * round_up(hidden, LANES) + round_up(out, LANES)) * itemsize
    least = LEAST_COLUMNS // (products - 1)
    widest = block_i or max(least, min(STEP_BYTES // position, MAX_BLOCK_I))
    if block_rows is None:
        slice_wanted = min(block_i or least, intermediate)
        passes = -(-rows // MAX_ROWS)
        while _share(rows, passes) > MIN_ROWS and need(_share(rows, passes), slice_wanted) > VMEM_BUDGET:
            passes += 1
        block_rows = _share(rows, passes)
    block_rows = min(block_rows, rows)
    if block_i is None:
        while widest > multiple and need(block_rows, min(widest, intermediate)) > VMEM_BUDGET:
            widest = max(multiple, widest // 2)
        block_i = _cut(intermediate, least, widest, multiple, no_rest)
    block_i = min(block_i, intermediate)
    total = need(block_rows, block_i)
    return Blocks(block_rows, block_i, min(max(total + total // 4 + 2**22, VMEM_FLOOR), VMEM_CEILING))


def _share(rows: int, passes: int) -> int:
    """Rows of each of so many passes."""
    return rows if passes == 1 else round_up(-(-rows // passes), SUBLANES)

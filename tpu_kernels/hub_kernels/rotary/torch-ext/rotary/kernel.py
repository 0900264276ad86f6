"""Rotary position embedding of the heads of one tensor, as one Pallas TPU kernel (JAX only, no torch).

`rotary` reads each head once and writes it once. A grid step takes some positions of several heads, so that one
block of cosines and sines serves them all. In a decode step, which has one position, the heads take the place of
the positions and share its cosines.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LAYOUTS = ("half", "interleaved")
ROUNDINGS = ("each", "last")

LANES = 128
SUBLANES = 16  # second-minor tile of bfloat16; also a multiple of the one of float32
BLOCK_BYTES = 2**20  # of one block in float32
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Blocks(NamedTuple):
    """How one call is cut up: batch rows, heads and positions of a grid step."""

    batch: int
    heads: int
    positions: int
    vmem_bytes: int  # limit handed to the compiler


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def choose_blocks(*, batch: int, heads: int, positions: int, width: int, block_positions: int | None = None) -> Blocks:
    """Blocks for [batch, heads, positions, width].

    `block_positions` is cut to `positions`; ValueError if it is shorter and no multiple of 16.
    """
    row_bytes = 4 * _round_up(width, LANES)
    if block_positions is None:
        block_positions = max(SUBLANES, BLOCK_BYTES // row_bytes // SUBLANES * SUBLANES)
    elif block_positions < 1 or (block_positions < positions and block_positions % SUBLANES):
        raise ValueError(f"block_positions must be a positive multiple of {SUBLANES}; got {block_positions}")
    block_positions = min(block_positions, positions)
    head_bytes = row_bytes * _round_up(block_positions, SUBLANES)
    block_heads = min(heads, max(1, BLOCK_BYTES // head_bytes))
    block_batch = min(batch, max(1, BLOCK_BYTES // (head_bytes * block_heads)))
    # Input and output twice each, the tables, and what lies between in float32.
    block = head_bytes * block_heads * block_batch
    limit = min(max(12 * block + 2**21, VMEM_FLOOR), VMEM_CEILING)
    return Blocks(block_batch, block_heads, block_positions, limit)


def _turned(part: jax.Array, layout: str) -> jax.Array:
    """A quarter turn of each pair of [..., R]: (a, b) becomes (-b, a)."""
    width = part.shape[-1]
    if layout == "half":
        middle = width // 2
        return jnp.concatenate([-part[..., middle:], part[..., :middle]], axis=-1)
    after = jnp.concatenate([part[..., 1:], part[..., :1]], axis=-1)
    before = jnp.concatenate([part[..., -1:], part[..., :-1]], axis=-1)
    lane = lax.broadcasted_iota(jnp.int32, part.shape, part.ndim - 1)
    return jnp.where(lax.rem(lane, 2) == 0, -after, before)


def _rotary_kernel(x: Any, cos: Any, sin: Any, out: Any, *, layout: str, rounding: str) -> None:
    def product(factor: jax.Array, table: Any) -> jax.Array:
        whole = factor * table[...].astype(jnp.float32)[:, None]
        return whole.astype(out.dtype).astype(jnp.float32) if rounding == "each" else whole

    rotary_dim = cos.shape[-1]
    values = x[...].astype(jnp.float32)
    part = values[..., :rotary_dim]
    part = product(part, cos) + product(_turned(part, layout), sin)
    if rotary_dim < values.shape[-1]:
        part = jnp.concatenate([part, values[..., rotary_dim:]], axis=-1)
    out[...] = part.astype(out.dtype)


def rotary(
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    layout: str = "half",
    rounding: str = "each",
    block_positions: Optional[int] = None,  # noqa: UP045  (torch's schema inference reads this)
) -> jax.Array:
    """The heads of x [B, heads, T, D], turned by the angles of cos and sin [B or 1, T, R].

    The first R numbers of each head are turned, the others stay: x * cos + turn(x) * sin. In the layout "half",
    number i and number i + R/2 are a pair, in "interleaved" 2i and 2i + 1; a pair (a, b) turns to (-b, a). With the
    rounding "each" both products have x's dtype, with "last" they are float32. The result has x's shape and dtype.
    To be called under `jax.jit`.
    """
    if layout not in LAYOUTS or rounding not in ROUNDINGS:
        raise ValueError(f"layout must be one of {LAYOUTS}, rounding one of {ROUNDINGS}; got {layout!r}, {rounding!r}")
    shape, rotary_dim = x.shape, cos.shape[-1]
    if shape[2] == 1:
        x = x.reshape(shape[0], 1, shape[1], shape[3])
    batch, heads, positions, width = x.shape
    blocks = choose_blocks(batch=batch, heads=heads, positions=positions, width=width, block_positions=block_positions)
    one_batch, one_position = cos.shape[0] == 1, cos.shape[1] == 1

    block = pl.BlockSpec(
        (blocks.batch, blocks.heads, blocks.positions, width), lambda row, position, head: (row, head, position, 0)
    )
    table = pl.BlockSpec(
        (1 if one_batch else blocks.batch, 1 if one_position else blocks.positions, rotary_dim),
        lambda row, position, head: (0 if one_batch else row, 0 if one_position else position, 0),
    )
    out = pl.pallas_call(
        functools.partial(_rotary_kernel, layout=layout, rounding=rounding),
        grid=(pl.cdiv(batch, blocks.batch), pl.cdiv(positions, blocks.positions), pl.cdiv(heads, blocks.heads)),
        in_specs=[block, table, table],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel"),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        name=f"rotary_{layout}",
    )(x, cos, sin)
    return out.reshape(shape)

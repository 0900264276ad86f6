"""RMSNorm and LayerNorm of rows, as one Pallas TPU kernel (JAX only, no torch).

`norm` reads each row once and writes it once. Rows are independent, so a grid step takes as many of them as
fill a block; whatever the last block has beyond the end is computed and thrown away.

A weight of one dimension belongs to the last dimension of the input. A weight [heads, N] belongs to the last
two: a row is then one head, and a block holds whole groups of heads.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ORDERS = ("round_then_scale", "scale_then_round", "round_offset")

LANES = 128
SUBLANES = 16  # second-minor tile of bfloat16; also a multiple of the one of float32
BLOCK_BYTES = 2 * 2**20  # of one block in float32
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Blocks(NamedTuple):
    """How one call is cut up."""

    rows: int  # of the first dimension, in a grid step
    vmem_bytes: int  # limit handed to the compiler


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def choose_blocks(*, rows: int, heads: int | None, width: int, block_rows: int | None = None) -> Blocks:
    """Blocks for [rows, width], or [rows, heads, width] where the weight is one per head.

    `block_rows` is taken as it is, cut to `rows`; ValueError if it is no multiple of 16 and shorter than `rows`.
    """
    row_bytes = 4 * _round_up(width, LANES) * (1 if heads is None else _round_up(heads, SUBLANES))
    step = SUBLANES if heads is None else 1
    if block_rows is None:
        block_rows = max(step, BLOCK_BYTES // row_bytes // step * step)
    elif block_rows < 1 or (block_rows < rows and block_rows % step):
        raise ValueError(f"block_rows must be a positive multiple of {step}; got {block_rows}")
    block_rows = min(block_rows, rows)
    block = row_bytes * _round_up(block_rows, step)
    # Input and output twice each, and what lies between in float32.
    limit = min(max(8 * block + 2**21, VMEM_FLOOR), VMEM_CEILING)
    return Blocks(block_rows, limit)


def _rounded(value: jax.Array, dtype: Any) -> jax.Array:
    """`value` as float32, with the precision of `dtype`."""
    return value.astype(dtype).astype(jnp.float32)


def _norm_kernel(
    *refs: Any, eps: float, center: bool, offset: float, order: str, has_weight: bool, has_bias: bool
) -> None:
    x, *parameters, out = refs
    weight = parameters.pop(0) if has_weight else None
    bias = parameters.pop(0) if has_bias else None
    values = x[...].astype(jnp.float32)
    width = values.shape[-1]

    def mean(of: jax.Array) -> jax.Array:
        return jnp.sum(of, axis=-1, keepdims=True) / width

    if center:
        values = values - mean(values)
    values = values * lax.rsqrt(mean(values * values) + eps)

    each = order == "round_then_scale"
    if each:
        values = _rounded(values, out.dtype)
    if weight is not None:
        scale = weight[...].astype(jnp.float32)
        if offset:
            scale = scale + offset
            if order != "scale_then_round":
                scale = _rounded(scale, weight.dtype)
        values = values * scale
        if each:
            values = _rounded(values, out.dtype)
    if bias is not None:
        values = values + bias[...].astype(jnp.float32)
    out[...] = values.astype(out.dtype)


def norm(
    x: jax.Array,
    weight: Optional[jax.Array] = None,  # noqa: UP045  (torch's schema inference reads this)
    bias: Optional[jax.Array] = None,  # noqa: UP045
    *,
    eps: float,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
    block_rows: Optional[int] = None,  # noqa: UP045
) -> jax.Array:
    """The rows of x [..., N], each divided by its root mean square, times a weight, plus a bias.

    weight and bias: [N], or [heads, N] for an x [..., heads, N]. `center` takes the mean of each row away first
    (LayerNorm). With n the normalized row in float32, `order` says where it is rounded:

    * round_then_scale: n to x's dtype, times (offset + weight) in the weight's dtype, rounded; plus bias, rounded.
    * scale_then_round: n * (offset + weight) + bias in float32, rounded once.
    * round_offset: as scale_then_round, but offset + weight is rounded to the weight's dtype first.

    The result [..., N] has x's dtype. To be called under `jax.jit`.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}; got {order!r}")
    given = [parameter for parameter in (weight, bias) if parameter is not None]
    by_head = any(parameter.ndim == 2 for parameter in given)
    tail = x.shape[-2:] if by_head else x.shape[-1:]
    rows = math.prod(x.shape[: x.ndim - len(tail)])
    heads = tail[0] if by_head else None
    blocks = choose_blocks(rows=rows, heads=heads, width=tail[-1], block_rows=block_rows)

    zeros = (0,) * len(tail)
    block = pl.BlockSpec((blocks.rows, *tail), lambda row: (row, *zeros))
    shared = pl.BlockSpec(tail if by_head else (1, *tail), lambda row: (0, 0))
    parameters = [parameter.reshape(tail if by_head else (1, *tail)) for parameter in given]
    out = pl.pallas_call(
        functools.partial(
            _norm_kernel,
            eps=eps,
            center=center,
            offset=offset,
            order=order,
            has_weight=weight is not None,
            has_bias=bias is not None,
        ),
        grid=(pl.cdiv(rows, blocks.rows),),
        in_specs=[block, *[shared] * len(parameters)],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((rows, *tail), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        name="layer_norm" if center else "rms_norm",
    )(x.reshape(rows, *tail), *parameters)
    return out.reshape(x.shape)

"""RMSNorm and LayerNorm of rows, as one Pallas TPU kernel (JAX only, no torch).

`norm` reads each row once and writes it once. Rows are independent, so a grid step takes as many of them as
fill a block; whatever a block has beyond the end is computed and thrown away.

The input is taken as [groups, rows, N]. Dimensions are merged where that moves nothing in memory: XLA stores the
last two in tiles, so rows of several groups become one only if a group fills whole tiles.
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
HBM_BYTES = 2**20  # of an input that is read where it lies
VMEM_FLOOR = 16 * 2**20
VMEM_CEILING = 60 * 2**20  # tpu7x has 64 MiB


class Blocks(NamedTuple):
    """How one call is cut up."""

    groups: int  # of a grid step
    rows: int  # of a group, in a grid step
    vmem_bytes: int  # limit handed to the compiler


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def choose_blocks(*, groups: int, rows: int, width: int, block_rows: int | None = None) -> Blocks:
    """Blocks for [groups, rows, width].

    `block_rows` is how many rows a grid step takes at most, of one group or of several; ValueError if it is no
    multiple of 16.
    """
    row_bytes = 4 * _round_up(width, LANES)
    if block_rows is None:
        block_rows = max(SUBLANES, BLOCK_BYTES // row_bytes // SUBLANES * SUBLANES)
    elif block_rows < 1 or block_rows % SUBLANES:
        raise ValueError(f"block_rows must be a positive multiple of {SUBLANES}; got {block_rows}")
    together = min(groups, max(1, block_rows // _round_up(rows, SUBLANES)))
    rows = min(rows, block_rows)
    # Input and output twice each, and what lies between in float32.
    block = together * _round_up(rows, SUBLANES) * row_bytes
    limit = min(max(8 * block + 2**21, VMEM_FLOOR), VMEM_CEILING)
    return Blocks(together, rows, limit)


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


def _in_hbm(x: jax.Array) -> jax.Array:
    """Keeps XLA from bringing a large input into VMEM before the call, which it does on tpu7x.

    Pallas' HLO interpreter cannot trace the constraint, and JAX has no public way to ask whether it is on: a
    `pallas_call` that is only traced tells.
    """
    if x.size * x.dtype.itemsize < HBM_BYTES:
        return x
    asked = pl.pallas_call(lambda _, out: None, out_shape=jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    traced = jax.make_jaxpr(asked)(jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    if any(equation.params.get("interpret") for equation in traced.eqns):
        return x
    return pltpu.with_memory_space_constraint(x, pltpu.HBM)


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
    width = x.shape[-1]
    rows = x.shape[-2] if x.ndim > 1 else 1
    groups = math.prod(x.shape) // (rows * width)
    if not by_head and (rows == 1 or rows % SUBLANES == 0):
        groups, rows = 1, groups * rows
    blocks = choose_blocks(groups=groups, rows=rows, width=width, block_rows=block_rows)

    block = pl.BlockSpec((blocks.groups, blocks.rows, width), lambda group, row: (group, row, 0))
    shared = (
        pl.BlockSpec((blocks.rows, width), lambda group, row: (row, 0))
        if by_head
        else pl.BlockSpec((1, width), lambda group, row: (0, 0))
    )
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
        grid=(pl.cdiv(groups, blocks.groups), pl.cdiv(rows, blocks.rows)),
        in_specs=[block, *[shared] * len(given)],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((groups, rows, width), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        name="layer_norm" if center else "rms_norm",
    )(_in_hbm(x.reshape(groups, rows, width)), *[parameter.reshape(-1, width) for parameter in given])
    return out.reshape(x.shape)

"""The MLP of a transformer layer, as one Pallas TPU kernel (JAX only, no torch).

The grid is (blocks of rows, slices of the intermediate dimension). A step multiplies its rows by a slice of the gate
and of the up projection, applies the activation, and adds the product with the same slice of the down projection to
a float32 accumulator in VMEM. The intermediate values never leave VMEM, and the weights are read once for each
block of rows, while the slice before is computed.

Weights are read where and as they lie. XLA stores an array whose last dimension is not a multiple of 128 column by
column where that pads it less; such a weight is read through its transposed view, which costs no copy. The halves of
a fused gate and up projection are two blocks of one array.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .activations import activate
from .blocks import LANES, SUBLANES, Blocks, choose_blocks, lies_transposed

ROUNDINGS = ("each", "last")


class Weight(NamedTuple):
    """One projection as the kernel reads it."""

    array: jax.Array  # [I, other] or [other, I]; a fused one [2, I, other] or [other, 2I], the gate before up
    inner_axis: int  # where the intermediate dimension is, of the last two
    half: int | None = None  # which of the two of a fused one

    @property
    def on_lanes(self) -> bool:
        return self.inner_axis == 1

    @property
    def side_by_side(self) -> bool:
        return self.half is not None and self.on_lanes

    @property
    def intermediate(self) -> int:
        return self.array.shape[self.inner_axis - 2] // (2 if self.side_by_side else 1)

    def spec(self, inner: int) -> pl.BlockSpec:
        """A slice of `inner` intermediate positions, the other dimension whole."""
        other = self.array.shape[-1 - self.inner_axis]
        if self.on_lanes:
            skipped = self.intermediate // inner if self.half else 0
            return pl.BlockSpec((other, inner), lambda r, i: (0, i + skipped))
        if self.half is None:
            return pl.BlockSpec((inner, other), lambda r, i: (i, 0))
        return pl.BlockSpec((None, inner, other), lambda r, i: (self.half, i, 0))


class Form(NamedTuple):
    """What is the same in every step of a call."""

    activation: str
    rounding: str
    limit: float | None
    up_offset: float
    gated: bool
    axes: tuple[int, ...]  # of the intermediate dimension in each weight; the last is the down projection's
    rest: int  # intermediate positions of the last slice, if they are fewer than in the others; else 0


def _dot(lhs: jax.Array, rhs: jax.Array, rhs_contracts: int) -> jax.Array:
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        lhs,
        rhs,
        (((1,), (rhs_contracts,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def _between(form: Form, first: jax.Array, up: jax.Array | None, dtype: Any) -> jax.Array:
    """The intermediate values of float32 products of the first projections, rounded to `dtype`."""

    def rounded(value: jax.Array) -> jax.Array:
        return value.astype(dtype).astype(jnp.float32)

    each = rounded if form.rounding == "each" else lambda value: value
    first = rounded(first)
    if up is None:
        return activate(form.activation, first).astype(dtype)
    up = rounded(up)
    if form.limit is not None:
        first = each(jnp.minimum(first, form.limit))
        up = each(jnp.clip(up, -form.limit, form.limit))
    if form.up_offset:
        up = each(up + form.up_offset)
    return (each(activate(form.activation, first)) * up).astype(dtype)


def _mlp_kernel(x: Any, *refs: Any, form: Form, has_bias: tuple[bool, ...]) -> None:
    count = len(form.axes)
    weights, (*given, out, total) = refs[:count], refs[count:]
    left = iter(given)
    biases = [next(left) if there else None for there in has_bias]
    slice_number, slices = pl.program_id(1), pl.num_programs(1)

    @pl.when(slice_number == 0)
    def _() -> None:
        total[...] = jnp.zeros(total.shape, jnp.float32)

    def take_slice(valid: int) -> None:
        products = []
        for weight, axis, bias in zip(weights[:-1], form.axes[:-1], biases[:-1], strict=True):
            product = _dot(x[...], weight[...], 1 - axis)
            products.append(product if bias is None else product + bias[...].astype(jnp.float32))
        inner = _between(form, products[0], products[1] if form.gated else None, x.dtype)
        down = weights[-1][...]
        if valid:  # what lies behind the end of an array may be anything
            inner = jnp.where(lax.broadcasted_iota(jnp.int32, inner.shape, 1) < valid, inner, 0)
            down = jnp.where(lax.broadcasted_iota(jnp.int32, down.shape, form.axes[-1]) < valid, down, 0)
        total[...] += _dot(inner, down, form.axes[-1])

    if form.rest:
        pl.when(slice_number < slices - 1)(lambda: take_slice(0))
        pl.when(slice_number == slices - 1)(lambda: take_slice(form.rest))
    else:
        take_slice(0)

    @pl.when(slice_number == slices - 1)
    def _() -> None:
        result = total[...]
        if biases[-1] is not None:
            result = result + biases[-1][...].astype(jnp.float32)
        out[...] = result.astype(out.dtype)


def _in_hbm(weight: jax.Array) -> jax.Array:
    """Keeps XLA from bringing a whole weight into VMEM before the call, which it does on tpu7x.

    Pallas' HLO interpreter cannot trace the constraint, and JAX has no public way to ask whether it is on: a
    `pallas_call` that is only traced tells.
    """
    asked = pl.pallas_call(lambda _, out: None, out_shape=jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    traced = jax.make_jaxpr(asked)(jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    if any(equation.params.get("interpret") for equation in traced.eqns):
        return weight
    return pltpu.with_memory_space_constraint(weight, pltpu.HBM)


def _as_it_lies(array: jax.Array, inner_axis: int) -> Weight:
    return Weight(array.T, 1 - inner_axis) if lies_transposed(*array.shape) else Weight(array, inner_axis)


def _halves(fused: jax.Array) -> tuple[Weight, Weight]:
    """Gate and up projection of a fused [2I, H]. It is copied only if I does not fit the tiles of its layout."""
    inner = fused.shape[0] // 2
    if lies_transposed(*fused.shape) and inner % LANES == 0:
        return Weight(fused.T, 1, 0), Weight(fused.T, 1, 1)
    stacked = fused.reshape(2, inner, fused.shape[1])
    return Weight(stacked, 0, 0), Weight(stacked, 0, 1)


def _call(
    x: jax.Array,
    weights: list[Weight],
    biases: list[jax.Array | None],
    form: dict[str, Any],
    block_rows: int | None,
    block_i: int | None,
    name: str,
) -> jax.Array:
    if form["rounding"] not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}; got {form['rounding']!r}")
    *lead, hidden = x.shape
    flat = x.reshape(-1, hidden)
    rows = flat.shape[0]
    down = weights[-1]
    intermediate, out_width = down.intermediate, down.array.shape[1 - down.inner_axis]
    blocks: Blocks = choose_blocks(
        rows=rows,
        hidden=hidden,
        intermediate=intermediate,
        out=out_width,
        products=len(weights),
        multiple=LANES if any(w.on_lanes for w in weights) or any(b is not None for b in biases[:-1]) else SUBLANES,
        itemsize=x.dtype.itemsize,
        no_rest=any(weight.side_by_side for weight in weights),
        block_rows=block_rows,
        block_i=block_i,
    )
    # What is there once for all steps needs one buffer.
    passing = {"pipeline_mode": pl.Buffered(1)} if blocks.rows == rows else {}

    def rows_of(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((blocks.rows, width), lambda r, i: (r, 0), **passing)

    in_specs = [rows_of(hidden), *(weight.spec(blocks.inner) for weight in weights)]
    operands = [flat, *(_in_hbm(weight.array) for weight in weights)]
    for bias in biases[:-1]:
        if bias is not None:
            operands.append(bias.reshape(1, intermediate))
            in_specs.append(pl.BlockSpec((1, blocks.inner), lambda r, i: (0, i)))
    if biases[-1] is not None:
        operands.append(biases[-1].reshape(1, out_width))
        in_specs.append(pl.BlockSpec((1, out_width), lambda r, i: (0, 0)))
    out = pl.pallas_call(
        functools.partial(
            _mlp_kernel,
            form=Form(**form, axes=tuple(w.inner_axis for w in weights), rest=intermediate % blocks.inner),
            has_bias=tuple(bias is not None for bias in biases),
        ),
        grid=(pl.cdiv(rows, blocks.rows), pl.cdiv(intermediate, blocks.inner)),
        in_specs=in_specs,
        out_specs=rows_of(out_width),
        out_shape=jax.ShapeDtypeStruct((rows, out_width), x.dtype),
        scratch_shapes=[pltpu.VMEM((blocks.rows, out_width), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        name=name,
    )(*operands)
    return out.reshape(*lead, out_width)


def gated_mlp(
    x: jax.Array,
    gate: jax.Array,
    up: Optional[jax.Array],  # noqa: UP045  (torch's schema inference reads this)
    down: jax.Array,
    gate_bias: Optional[jax.Array] = None,  # noqa: UP045
    up_bias: Optional[jax.Array] = None,  # noqa: UP045
    down_bias: Optional[jax.Array] = None,  # noqa: UP045
    *,
    activation: str,
    rounding: str = "each",
    limit: Optional[float] = None,  # noqa: UP045
    up_offset: float = 0.0,
    block_rows: Optional[int] = None,  # noqa: UP045
    block_i: Optional[int] = None,  # noqa: UP045
) -> jax.Array:
    """act(x @ gate.T) * (x @ up.T) @ down.T of x [..., H], gate and up [I, H], down [O, I], each with its bias.

    Without `up`, `gate` is the fused [2I, H] with the gate's rows first, and `gate_bias` is [2I]. Products are summed
    in float32. Rounded to x's dtype are: the products of gate and up with their bias; their values cut to `limit` (the
    gate's from above, up's on both sides); up + `up_offset`; the activation; the intermediate values; the result with
    its bias. With `rounding` "last" nothing is rounded between the first products and the intermediate values. To be
    called under `jax.jit`.
    """
    if up is None:
        first = list(_halves(gate))
        biases = [None, None] if gate_bias is None else list(gate_bias.reshape(2, -1))
    else:
        first = [_as_it_lies(gate, 0), _as_it_lies(up, 0)]
        biases = [gate_bias, up_bias]
    form = {"activation": activation, "rounding": rounding, "limit": limit, "up_offset": up_offset, "gated": True}
    weights = [*first, _as_it_lies(down, 1)]
    return _call(x, weights, [*biases, down_bias], form, block_rows, block_i, "gated_mlp")


def mlp(
    x: jax.Array,
    up: jax.Array,
    down: jax.Array,
    up_bias: Optional[jax.Array] = None,  # noqa: UP045
    down_bias: Optional[jax.Array] = None,  # noqa: UP045
    *,
    activation: str,
    transposed: bool = False,
    rounding: str = "each",
    block_rows: Optional[int] = None,  # noqa: UP045
    block_i: Optional[int] = None,  # noqa: UP045
) -> jax.Array:
    """act(x @ up.T) @ down.T of x [..., H], up [I, H], down [O, I], each with its bias.

    `transposed` weights are up [H, I] and down [I, O]. Products are summed in float32 and rounded to x's dtype with
    their bias, and so is the activation: there is nothing else between them, so both values of `rounding` are the
    same. To be called under `jax.jit`.
    """
    axis = 1 if transposed else 0
    weights = [_as_it_lies(up, axis), _as_it_lies(down, 1 - axis)]
    form = {"activation": activation, "rounding": rounding, "limit": None, "up_offset": 0.0, "gated": False}
    return _call(x, weights, [up_bias, down_bias], form, block_rows, block_i, "mlp")

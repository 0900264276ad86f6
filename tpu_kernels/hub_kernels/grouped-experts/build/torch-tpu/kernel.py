"""The experts of a mixture, as one Pallas TPU kernel (JAX only, no torch).

Weights stay in HBM. The kernel visits one used expert after the other; two rings of VMEM buffers, one for each of an
expert's two matrices, are filled by explicit copies that run ahead over the edges of visits. Every copy is a run of
whole rows of a weight as it lies in memory.

* Few tokens: every visit computes the expert for all tokens, which costs nothing while the weights are on their way,
  and adds the weighted result to the rows that chose the expert. Nothing is sorted, gathered or scattered.
* Many tokens: pairs of token and expert are sorted by expert. A visit takes up to `tile` rows of one expert from the
  sorted rows of hidden, wherever they begin. A block of rows that two visits share is written by the later one.

XLA stores [..., rows, columns] with the last two dimensions swapped where that needs less padding. Such weights are
read through a swapped view, which costs no copy.
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
from .blocks import LANES, ROWS, ROWS_BUDGET, Blocks, Weight, choose_blocks, lies_swapped, round_up, rows_bytes

COLUMNS = 512  # columns of one step of elementwise work
FEW_TOKENS = 512  # bytes of one column of hidden: up to here every visit takes all tokens


class Gate(NamedTuple):
    """The arithmetic between the two products; every field is a compile-time constant."""

    activation: str
    gated: bool
    interleaved: bool
    rounding: str
    limit: float | None
    up_offset: float


def _dot(lhs: jax.Array, rhs: jax.Array, rhs_contracts: int) -> jax.Array:
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        lhs, rhs, (((1,), (rhs_contracts,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _apply_gate(first: jax.Array, up: jax.Array | None, gate: Gate, dtype: Any) -> jax.Array:
    """float32 in, `dtype` out; limits are already applied."""
    result = activate(gate.activation, first)
    if up is None:
        return result.astype(dtype)
    up = up + gate.up_offset if gate.up_offset else up
    if gate.rounding == "each":
        result, up = (part.astype(dtype).astype(jnp.float32) for part in (result, up))
    return (result * up).astype(dtype)


def _by_columns(width: int, aligned: bool, body: Any) -> None:
    """body(start, width) over all of `width`: a loop over whole blocks where starts may be traced, then the rest."""
    block = min(COLUMNS, width)
    if width % LANES == 0:
        block = next(size for size in range(block, 0, -LANES) if width % size == 0)
    whole = width // block
    if aligned and block % LANES == 0 and whole > 1:

        def step(number: jax.Array, _: None) -> None:
            body(pl.multiple_of(number * block, LANES), block)

        lax.fori_loop(0, whole, step, None)
    else:
        for number in range(whole):
            body(number * block, block)
    if width % block:
        body(whole * block, width % block)


def _select(inputs: int, offset: int, dtype: Any) -> jax.Array:
    """[inputs, inputs // 2] of zeros and ones: a product with it takes every second column, from `offset` on."""
    shape = (inputs, inputs // 2)
    row, column = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return jnp.where(row == 2 * column + offset, 1.0, 0.0).astype(dtype)


def _gate_rows(product: Any, bias: Any, act: Any, rows: Any, gate: Gate, width: int) -> None:
    """act[rows] from product[rows]: rounded, the bias added, rounded again, then the gate.

    `act` may be `product`: columns are written behind those that are read.
    """
    dtype = act.dtype

    def take(start: Any, size: int) -> jax.Array:
        part = product[rows, pl.ds(start, size)].astype(dtype)
        if bias is not None:
            part = (part.astype(jnp.float32) + bias[0:1, pl.ds(start, size)]).astype(dtype)
        return part.astype(jnp.float32)

    def limited(first: jax.Array) -> jax.Array:
        return first if gate.limit is None else jnp.minimum(first, gate.limit)

    def clipped(up: jax.Array) -> jax.Array:
        return up if gate.limit is None else jnp.clip(up, -gate.limit, gate.limit)

    def step(start: Any, size: int) -> None:
        if not gate.gated:
            result = _apply_gate(limited(take(start, size)), None, gate, dtype)
        elif not gate.interleaved:
            result = _apply_gate(limited(take(start, size)), clipped(take(width + start, size)), gate, dtype)
        else:
            both = take(2 * start, 2 * size)
            if gate.limit is not None:  # before the selection, in which something infinite would spread
                lane = lax.broadcasted_iota(jnp.int32, both.shape, 1)
                both = jnp.where(lane & 1 == 0, limited(both), clipped(both))
            pieces = []
            for at in range(0, 2 * size, 2 * LANES):
                piece = both[:, at : at + 2 * LANES].astype(dtype)
                first, up = (_dot(piece, _select(piece.shape[1], offset, dtype), 0) for offset in (0, 1))
                pieces.append(_apply_gate(first, up, gate, dtype))
            result = jnp.concatenate(pieces, axis=1)
        act[rows, pl.ds(start, size)] = result

    aligned = not gate.gated or gate.interleaved or width % LANES == 0
    _by_columns(width, aligned, step)


class _Ring:
    """Buffers for the blocks of one matrix of the visited experts, in the order in which they are used."""

    def __init__(self, weight: Weight, hbm: Any, buffers: Any, arrivals: Any, experts: Any, visits: Any) -> None:
        self.weight, self.hbm, self.buffers, self.arrivals = weight, hbm, buffers, arrivals
        self.experts, self.total = experts, visits * weight.steps
        self.count = buffers.shape[0]

    def _copy(self, item: Any, expert: Any) -> Any:
        steps, block = self.weight.steps, self.weight.block
        slot = lax.rem(item, self.count)
        source = self.hbm.at[expert] if steps == 1 else self.hbm.at[expert, pl.ds(self._first_row(item), block)]
        return pltpu.make_async_copy(source, self.buffers.at[slot], self.arrivals.at[slot])

    def _first_row(self, item: Any) -> Any:
        block = self.weight.block
        return pl.multiple_of(lax.rem(item, self.weight.steps) * block, block)

    def _start(self, item: Any) -> None:
        @pl.when(item < self.total)
        def _() -> None:
            self._copy(item, self.experts[lax.div(item, self.weight.steps)]).start()

    def fill(self) -> None:
        for item in range(self.count - 1):
            self._start(jnp.int32(item))

    def take(self, item: Any) -> Any:
        """The buffer of block number `item`, once it has arrived; the next one that fits is sent for."""
        self._copy(item, 0).wait()
        self._start(item + (self.count - 1))
        return self.buffers.at[lax.rem(item, self.count)]


def _arrange(source: Any, target: Any, rows: Any, weight: Weight) -> None:
    """Columns of `source` in the order of a weight's blocks, so that a block can be chosen by a traced number."""
    for number in range(weight.steps):
        target[number, rows] = source[rows, number * weight.block : (number + 1) * weight.block]


def _times(weight: Weight, ring: _Ring, visit: Any, source: Any, target: Any, row_blocks: Any, rows: int) -> None:
    """target = source times the weight of a visit: [tile, ...] by rows that are in use.

    Where the weight's rows are summed over, `source` is arranged by blocks and `target` is float32.
    """

    def step(number: Any, _: None) -> None:
        buffer = ring.take(visit * weight.steps + number)

        def product(part: Any, _: None) -> None:
            at = pl.ds(pl.multiple_of(part * rows, rows), rows)
            if not weight.sums_rows:
                result = _dot(source[at, : weight.columns], buffer[...], 1).astype(target.dtype)
                if weight.steps == 1:
                    target[at] = result
                else:
                    target[at, pl.ds(pl.multiple_of(number * weight.block, LANES), weight.block)] = result
            elif weight.steps == 1:
                target[at] = _dot(source[at, : weight.rows], buffer[...], 0)
            else:
                result = _dot(source[number, at], buffer[...], 0)
                target[at] = result + jnp.where(number == 0, 0.0, target[at])

        _loop(row_blocks, product)

    _loop(weight.steps, step)


def _loop(count: Any, body: Any) -> None:
    if isinstance(count, int) and count == 1:
        body(0, None)
    else:
        lax.fori_loop(0, count, body, None)


def _bias_of(expert: Any, biases: Any, chosen: Any) -> None:
    """chosen[0] = biases[expert] in float32; an expert's row cannot be sliced out of a tile by a traced number."""

    def step(start: Any, size: int) -> None:
        part = biases[:, pl.ds(start, size)].astype(jnp.float32)
        wanted = lax.broadcasted_iota(jnp.int32, part.shape, 0) == expert
        chosen[0:1, pl.ds(start, size)] = jnp.sum(jnp.where(wanted, part, 0.0), axis=0, keepdims=True)

    _by_columns(biases.shape[1], biases.shape[1] % LANES == 0, step)


class _Products(NamedTuple):
    """What both kernels need for the two products of a visit: blocks, rings and scratch memory."""

    blocks: Blocks
    gate: Gate
    intermediate: int
    up_ring: _Ring
    down_ring: _Ring
    up_biases: Any
    down_biases: Any
    up_bias: Any
    down_bias: Any
    arranged: Any  # hidden by blocks, where the first weight's rows are summed over
    product: Any
    act: Any  # [tile, I] or wider: the first product itself where that has the dtype of hidden
    arranged_act: Any
    result: Any  # [tile, H]: float32, or the dtype of hidden if it is final in one step

    def run(self, visit: Any, expert: Any, hidden: Any, row_blocks: Any) -> None:
        """result = the two products of the rows `hidden` [tile, H]; biases and rounding of the second are left out."""
        blocks, rows = self.blocks, self.blocks.rows
        if self.up_bias is not None:
            _bias_of(expert, self.up_biases, self.up_bias)
        if self.down_bias is not None:
            _bias_of(expert, self.down_biases, self.down_bias)

        def rows_of(part: Any) -> Any:
            return pl.ds(pl.multiple_of(part * rows, rows), rows)

        if self.arranged is not None:
            _loop(row_blocks, lambda part, _: _arrange(hidden, self.arranged, rows_of(part), blocks.up))
        source = hidden if self.arranged is None else self.arranged
        _times(blocks.up, self.up_ring, visit, source, self.product, row_blocks, rows)

        def between(part: Any, _: None) -> None:
            at = rows_of(part)
            _gate_rows(self.product, self.up_bias, self.act, at, self.gate, self.intermediate)
            if self.arranged_act is not None:
                _arrange(self.act, self.arranged_act, at, blocks.down)

        _loop(row_blocks, between)
        source = self.act if self.arranged_act is None else self.arranged_act
        _times(blocks.down, self.down_ring, visit, source, self.result, row_blocks, rows)

    def finished(self, at: Any, start: Any, size: int, dtype: Any) -> jax.Array:
        """Columns of the second product, rounded, with the bias, rounded again; in float32."""
        part = self.result[at, pl.ds(start, size)].astype(dtype).astype(jnp.float32)
        if self.down_bias is not None:
            part = (part + self.down_bias[0:1, pl.ds(start, size)]).astype(dtype).astype(jnp.float32)
        return part


def _few_kernel(pairs: Any, hidden: Any, indices: Any, weights: Any, *refs: Any, experts: int, **options: Any) -> None:
    """All tokens at every used expert. pairs int32 [T*K] in SMEM; out [T, H]."""
    biases, refs = _split(refs, options["biased"])
    up_hbm, down_hbm, out, used, seen, *scratch = refs
    count, dtype = pairs.shape[0], out.dtype

    def forget(expert: jax.Array, _: None) -> None:
        seen[expert] = 0

    def note(pair: jax.Array, visits: jax.Array) -> jax.Array:
        expert = pairs[pair]
        valid = (expert >= 0) & (expert < experts)
        place = jnp.where(valid, expert, experts)
        new = jnp.where(valid, 1 - seen[place], 0)
        used[visits] = expert
        seen[place] = 1
        return visits + new

    lax.fori_loop(0, experts + 1, forget, None)
    visits = lax.fori_loop(0, count, note, jnp.int32(0))
    sums, products = _products(scratch, biases, up_hbm, down_hbm, used, visits, **options)
    sums[...] = jnp.zeros(sums.shape, jnp.float32)

    def visit(number: jax.Array, _: None) -> None:
        expert = used[number]
        products.run(number, expert, hidden, 1)
        mine = indices[...] == expert
        weight = jnp.sum(jnp.where(mine, weights[...].astype(jnp.float32), 0.0), axis=1, keepdims=True)
        chosen = jnp.max(jnp.where(mine, 1.0, 0.0), axis=1, keepdims=True) > 0.0

        def add(start: Any, size: int) -> None:
            part = products.finished(slice(None), start, size, dtype) * weight
            if weights.dtype == dtype:
                part = part.astype(dtype).astype(jnp.float32)
            at = pl.ds(start, size)
            sums[:, at] = sums[:, at] + jnp.where(chosen, part, 0.0)

        _by_columns(out.shape[1], out.shape[1] % LANES == 0, add)

    lax.fori_loop(0, visits, visit, None)
    out[...] = sums[...].astype(dtype)


def _many_kernel(counts: Any, *refs: Any, experts: int, **options: Any) -> None:
    """Sorted rows, by runs of one expert. counts int32 [E] in SMEM: rows of each; hidden and out [rows, H] in HBM."""
    biases, refs = _split(refs, options["biased"])
    hidden_hbm, up_hbm, down_hbm, out_hbm, used, begin, end, written, hidden, out, carried, came, went, *scratch = refs
    tile, rows, dtype = options["blocks"].tile, options["blocks"].rows, out.dtype

    def list_visits(expert: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def add(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            visits, row = state
            stop = jnp.minimum(last, first_block(row) * ROWS + tile)
            used[visits], begin[visits], end[visits] = expert, row, stop
            return visits + 1, stop

        visits, row = state
        last = row + counts[expert]
        return lax.while_loop(lambda state: state[1] < last, add, (visits, row))

    def first_block(row: Any) -> Any:
        return lax.div(row, ROWS)

    visits, _ = lax.fori_loop(0, experts, list_visits, (jnp.int32(0), jnp.int32(0)))
    _, products = _products(scratch, biases, up_hbm, down_hbm, used, visits, **options)

    def block_copy(hbm: Any, buffer: Any, slot: Any, flags: Any, first: Any, number: Any, outward: bool) -> Any:
        far = hbm.at[pl.ds(pl.multiple_of((first + number) * ROWS, ROWS), ROWS)]
        near = buffer.at[slot, pl.ds(pl.multiple_of(number * ROWS, ROWS), ROWS)]
        return pltpu.make_async_copy(*((near, far) if outward else (far, near)), flags.at[slot])

    def blocks_of(visit: Any) -> Any:
        return lax.div(end[visit] - first_block(begin[visit]) * ROWS + (ROWS - 1), ROWS)

    def fetch(visit: Any) -> None:
        @pl.when(visit < visits)
        def _() -> None:
            slot, first = lax.rem(visit, 2), first_block(begin[visit])
            start = lambda number, _: block_copy(hidden_hbm, hidden, slot, came, first, number, False).start()  # noqa: E731
            lax.fori_loop(0, blocks_of(visit), start, None)

    def wait_written(slot: Any) -> None:
        wait = lambda number, _: block_copy(out_hbm, out, slot, went, 0, number, True).wait()  # noqa: E731
        lax.fori_loop(0, written[slot], wait, None)

    written[0] = written[1] = 0
    carried[...] = jnp.zeros(carried.shape, dtype)
    fetch(jnp.int32(0))

    def visit(number: jax.Array, _: None) -> None:
        slot, row, stop = lax.rem(number, 2), begin[number], end[number]
        first, blocks = first_block(row), blocks_of(number)
        fetch(number + 1)
        wait = lambda part, _: block_copy(hidden_hbm, hidden, slot, came, 0, part, False).wait()  # noqa: E731
        lax.fori_loop(0, blocks, wait, None)
        row_blocks = lax.div(blocks * ROWS + (rows - 1), rows)
        products.run(number, used[number], hidden.at[slot], row_blocks)
        wait_written(slot)

        def finish(part: jax.Array, _: None) -> None:
            at = pl.ds(pl.multiple_of(part * rows, rows), rows)

            def columns(start: Any, size: int) -> None:
                out[slot, at, pl.ds(start, size)] = products.finished(at, start, size, dtype).astype(dtype)

            _by_columns(out.shape[2], out.shape[2] % LANES == 0, columns)

        lax.fori_loop(0, row_blocks, finish, None)
        # Rows before `row` in the first block are those of the visits before.
        above = lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0) < row - first * ROWS
        out[slot, 0:ROWS] = jnp.where(above, carried[...], out[slot, 0:ROWS])
        carried[...] = out[slot, pl.ds(pl.multiple_of((blocks - 1) * ROWS, ROWS), ROWS)]
        ready = jnp.where(number == visits - 1, blocks, first_block(stop) - first)
        start = lambda part, _: block_copy(out_hbm, out, slot, went, first, part, True).start()  # noqa: E731
        lax.fori_loop(0, ready, start, None)
        written[slot] = ready

    lax.fori_loop(0, visits, visit, None)
    wait_written(0)
    wait_written(1)


def _split(refs: Any, biased: tuple[bool, bool]) -> tuple[tuple[Any, Any], list[Any]]:
    """The references of the biases (None where there is none), and the others."""
    left = list(refs)
    up = left.pop(0) if biased[0] else None
    return (up, left.pop(0) if biased[1] else None), left


def _products(
    scratch: list[Any],
    biases: tuple[Any, Any],
    up_hbm: Any,
    down_hbm: Any,
    used: Any,
    visits: Any,
    *,
    blocks: Blocks,
    gate: Gate,
    biased: tuple[bool, bool],
    intermediate: int,
) -> tuple[Any, _Products]:
    """The sums of the kernel for few tokens, and what `_scratch` made, by name; both rings are set going."""
    left = list(scratch)
    sums, up_buffers, down_buffers, up_arrivals, down_arrivals, product, result = left[:7]
    del left[:7]
    act = left.pop(0) if blocks.up.sums_rows else product
    up_ring = _Ring(blocks.up, up_hbm, up_buffers, up_arrivals, used, visits)
    down_ring = _Ring(blocks.down, down_hbm, down_buffers, down_arrivals, used, visits)
    up_ring.fill()
    down_ring.fill()
    return sums, _Products(
        blocks,
        gate,
        intermediate,
        up_ring,
        down_ring,
        *biases,
        up_bias=left.pop(0) if biased[0] else None,
        down_bias=left.pop(0) if biased[1] else None,
        arranged=left.pop(0) if _is_arranged(blocks.up) else None,
        product=product,
        act=act,
        arranged_act=left.pop(0) if _is_arranged(blocks.down) else None,
        result=result,
    )


def _is_arranged(weight: Weight) -> bool:
    return weight.sums_rows and weight.steps > 1


def _scratch(
    blocks: Blocks, sums: int, hidden: int, intermediate: int, gated: bool, biased: tuple[bool, bool], dtype: Any
) -> list[Any]:
    up, down, tile = blocks.up, blocks.down, blocks.tile
    product = (2 if gated else 1) * intermediate
    shapes = [
        pltpu.VMEM((sums, hidden), jnp.float32),
        pltpu.VMEM((blocks.num_buffers, up.block, up.columns), dtype),
        pltpu.VMEM((blocks.num_buffers, down.block, down.columns), dtype),
        pltpu.SemaphoreType.DMA((blocks.num_buffers,)),
        pltpu.SemaphoreType.DMA((blocks.num_buffers,)),
        pltpu.VMEM((tile, product), jnp.float32 if up.sums_rows else dtype),
        pltpu.VMEM((tile, hidden), jnp.float32 if down.sums_rows else dtype),
    ]
    if up.sums_rows:
        shapes.append(pltpu.VMEM((tile, intermediate), dtype))
    if biased[0]:
        shapes.append(pltpu.VMEM((8, product), jnp.float32))
    if biased[1]:
        shapes.append(pltpu.VMEM((8, hidden), jnp.float32))
    if _is_arranged(up):
        shapes.append(pltpu.VMEM((up.steps, tile, up.block), dtype))
    if _is_arranged(down):
        shapes.append(pltpu.VMEM((down.steps, tile, down.block), dtype))
    return shapes


def _in_hbm(weight: jax.Array) -> jax.Array:
    """Keeps XLA from bringing the weights of all experts into VMEM before the call, which it does where they fit.

    Pallas' HLO interpreter cannot trace the constraint, and JAX has no public way to ask whether it is on: a
    `pallas_call` that is only traced tells.
    """
    asked = pl.pallas_call(lambda _, out: None, out_shape=jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    traced = jax.make_jaxpr(asked)(jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    if any(equation.params.get("interpret") for equation in traced.eqns):
        return weight
    return pltpu.with_memory_space_constraint(weight, pltpu.HBM)


def _rows_at(array: jax.Array, rows: jax.Array) -> jax.Array:
    """array[rows], without the pass over the result that makes rows out of bounds NaN."""
    return array.at[rows].get(mode="promise_in_bounds")


def _as_stored(weight: jax.Array, sums_rows: bool) -> tuple[jax.Array, tuple[int, int, bool]]:
    """The view of a weight that needs no copy; its rows, columns, and whether a product sums over the rows."""
    rows, columns = weight.shape[1:]
    if lies_swapped(rows, columns):
        return _in_hbm(weight.swapaxes(1, 2)), (columns, rows, not sums_rows)
    return _in_hbm(weight), (rows, columns, sums_rows)


def experts(
    hidden: jax.Array,
    indices: jax.Array,
    weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    gate_up_bias: Optional[jax.Array] = None,  # noqa: UP045  (torch's schema inference reads this)
    down_bias: Optional[jax.Array] = None,  # noqa: UP045
    *,
    activation: str,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    rounding: str = "each",
    limit: Optional[float] = None,  # noqa: UP045
    up_offset: float = 0.0,
    tile: Optional[int] = None,  # noqa: UP045
    block_bytes: Optional[int] = None,  # noqa: UP045
    num_buffers: Optional[int] = None,  # noqa: UP045
) -> jax.Array:
    """The weighted sum of each token's experts: hidden [T, H], indices int [T, K], weights [T, K] to [T, H].

    gate_up [E, 2I, H] and down [E, H, I], or [E, H, 2I] and [E, I, H] if `transposed`; biases [E, 2I] and [E, H].
    Not `gated`: I in the place of 2I. An index outside of 0 to E - 1 contributes nothing. `tile` is None, or the
    rows of a visit of an expert, which also says that rows are to be sorted. To be called under `jax.jit`.
    """
    tokens, width = hidden.shape
    count, intermediate = gate_up.shape[0], down.shape[1 if transposed else 2]
    dtype = hidden.dtype
    up_view, up = _as_stored(gate_up, transposed)
    down_view, second = _as_stored(down, transposed)
    biases = [None if bias is None else bias.astype(dtype) for bias in (gate_up_bias, down_bias)]
    biased = (biases[0] is not None, biases[1] is not None)
    indices = indices.astype(jnp.int32)
    sizes = {"hidden": width, "intermediate": intermediate, "gated": gated, "itemsize": dtype.itemsize}

    def cut(rows: int) -> Blocks:
        return choose_blocks(up=up, down=second, tile=rows, **sizes, block_bytes=block_bytes, num_buffers=num_buffers)

    def fits(rows: int) -> bool:
        return rows_bytes(cut(rows).up, cut(rows).down, tile=rows, **sizes) <= ROWS_BUDGET

    gate = Gate(activation, gated, interleaved, rounding, limit, up_offset)
    options = {"experts": count, "gate": gate, "biased": biased, "intermediate": intermediate}
    operands = [bias for bias in biases if bias is not None]
    whole = [pl.BlockSpec(memory_space=pltpu.VMEM)] * len(operands)
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call = {"hidden": width, "intermediate": intermediate, "gated": gated, "biased": biased, "dtype": dtype}

    if tile is None and tokens * dtype.itemsize <= FEW_TOKENS and fits(tokens):
        blocks = cut(tokens)
        in_vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
        return pl.pallas_call(
            functools.partial(_few_kernel, blocks=blocks, **options),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(1,),
                in_specs=[in_vmem, in_vmem, in_vmem, *whole, in_hbm, in_hbm],
                out_specs=in_vmem,
                scratch_shapes=[
                    pltpu.SMEM((indices.size + 1,), jnp.int32),
                    pltpu.SMEM((count + 1,), jnp.int32),
                    *_scratch(blocks, tokens, **call),
                ],
            ),
            out_shape=jax.ShapeDtypeStruct((tokens, width), dtype),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary",), vmem_limit_bytes=blocks.vmem_bytes
            ),
            name="grouped_experts_few",
        )(indices.reshape(-1), hidden, indices, weights, *operands, up_view, down_view)

    pairs = indices.size
    if tile is None:
        each = -(-pairs // min(count, pairs))
        tile = 128 if each <= 64 else 256 if each <= 256 else 512
        while tile > 64 and not fits(tile):
            tile //= 2
    if tile % ROWS:
        raise ValueError(f"tile must be a multiple of {ROWS}; got {tile}")
    tile = min(tile, round_up(pairs, ROWS))
    blocks = cut(tile)
    experts_of = indices.reshape(-1)
    experts_of = jnp.where((experts_of >= 0) & (experts_of < count), experts_of, count)
    counts = jnp.sum(experts_of[:, None] == jnp.arange(count, dtype=jnp.int32), axis=0, dtype=jnp.int32)
    order = jnp.argsort(experts_of)
    place = jnp.argsort(order)
    token = lax.div(order.astype(jnp.int32), jnp.int32(indices.shape[1]))
    padded = round_up(pairs, ROWS)
    if padded != pairs:
        token = jnp.concatenate([token, jnp.zeros(padded - pairs, jnp.int32)])
    most = -(-pairs // tile) + 2 * min(count, pairs) + 1
    results = pl.pallas_call(
        functools.partial(_many_kernel, blocks=blocks, **options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[*whole, in_hbm, in_hbm, in_hbm],
            out_specs=in_hbm,
            scratch_shapes=[
                pltpu.SMEM((most,), jnp.int32),
                pltpu.SMEM((most,), jnp.int32),
                pltpu.SMEM((most,), jnp.int32),
                pltpu.SMEM((2,), jnp.int32),
                pltpu.VMEM((2, tile, width), dtype),
                pltpu.VMEM((2, tile, width), dtype),
                pltpu.VMEM((ROWS, width), dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA((2,)),
                *_scratch(blocks, 8, **call),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((padded, width), dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=blocks.vmem_bytes),
        name="grouped_experts_many",
    )(counts, *operands, _rows_at(hidden, token), up_view, down_view)
    each = _rows_at(results, place).reshape(*indices.shape, width) * weights[..., None]
    valid = (indices >= 0) & (indices < count)
    return jnp.sum(jnp.where(valid[..., None], each, 0).astype(jnp.float32), axis=1).astype(dtype)

"""Attention over a static key/value cache, as one Pallas TPU kernel (JAX only, no torch).

`attend` serves both phases of generation with the same kernel body:

* decode (one query token): the rows of a step are the query heads of a group, and all key/value
  heads of a batch row are handled in one step;
* prefill chunk (many query tokens): the rows of a step are `group x block_q` queries of one
  key/value head.

Keys and values stay in HBM. A ring of `num_buffers` VMEM buffers is filled by explicit copies, which
visit only the blocks between the first and the last valid key of a step's rows. The ring runs on over
the edges of grid steps: while the last blocks of one step are computed, the first blocks of the next
step that has any are already on their way. A step without a valid key starts no copy and waits for none.

XLA stores an array whose last dimension is not a multiple of 128 with the sequence innermost. Such
keys or values are read as [D, S] blocks through a transposed view, which costs no copy.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .blocks import LANES, SUBLANES, Blocks, choose_blocks, heads_together, round_up

# A running maximum starts far above MASKED, so that exp(MASKED - maximum) is 0 for a row that has
# met no valid key yet.
MASKED = -2.0e38
LOWEST = -1.0e30

# Words of the ring's state in SMEM.
ISSUE_STEP, ISSUE_BLOCK, ISSUE_SLOT, TAKE_SLOT = range(4)


def _dot(lhs: jax.Array, rhs: jax.Array, rhs_contracts: int) -> jax.Array:
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        lhs,
        rhs,
        (((1,), (rhs_contracts,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def _to_width(replicated: jax.Array, width: int) -> jax.Array:
    """[..., LANES] with the same number in every lane, as [..., width]: whole registers, no move across lanes."""
    copies = [replicated] * -(-width // LANES)
    wide = replicated if len(copies) == 1 else jnp.concatenate(copies, axis=-1)
    return wide if width % LANES == 0 else wide[..., :width]


def _sum_by_lane(weight: jax.Array) -> jax.Array:
    """[..., width] as [..., LANES] with the same sum."""
    width = weight.shape[-1]
    if width % LANES:
        missing = jnp.zeros((*weight.shape[:-1], -width % LANES), weight.dtype)
        weight = jnp.concatenate([weight, missing], axis=-1)
    parts = [weight[..., at : at + LANES] for at in range(0, width, LANES)]
    return functools.reduce(jnp.add, parts)


def _attention_kernel(
    spans: Any,
    query: Any,
    bounds: Any,
    *refs: Any,
    blocks: Blocks,
    scale: float,
    softcap: float | None,
    has_sinks: bool,
    length: int,
    padded_length: int,
    align: int,
    key_transposed: bool,
    value_transposed: bool,
) -> None:
    sinks, refs = (refs[0], refs[1:]) if has_sinks else (None, refs)
    key_hbm, value_hbm, out, key_ring, value_ring, peak, total, weighted, state, arrivals = refs
    block_k, heads, num_buffers = blocks.block_k, blocks.heads, blocks.num_buffers
    group, block_q = query.shape[2], query.shape[3]
    rows = group * block_q
    together = heads_together(heads)
    head_steps, query_steps = pl.num_programs(1), pl.num_programs(2)
    num_steps = pl.num_programs(0) * head_steps * query_steps
    this_step = (pl.program_id(0) * head_steps + pl.program_id(1)) * query_steps + pl.program_id(2)

    def span(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First position to copy, and number of blocks, of a grid step."""
        row = lax.div(step, head_steps * query_steps) * query_steps + lax.rem(step, query_steps)
        start = jnp.maximum(spans[2 * row], 0)
        end = jnp.minimum(spans[2 * row + 1], length)
        first = lax.div(start, align) * align
        return first, jnp.where(end > start, lax.div(end - first + (block_k - 1), block_k), 0)

    def first_step_with_keys(step: jax.Array) -> jax.Array:
        def count(step: jax.Array) -> jax.Array:
            return span(jnp.minimum(step, num_steps - 1))[1]

        def is_empty(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
            return (carry[0] < num_steps) & (carry[1] == 0)

        def advance(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return carry[0] + 1, count(carry[0] + 1)

        return lax.while_loop(is_empty, advance, (step, count(step)))[0]

    def next_slot(slot: jax.Array) -> jax.Array:
        return jnp.where(slot == num_buffers - 1, 0, slot + 1)

    def copies(row: Any, head: Any, base: Any, slot: jax.Array) -> tuple[Any, Any]:
        positions, some = pl.ds(base, block_k), pl.ds(head, heads)
        key_at = (row, some, slice(None), positions) if key_transposed else (row, some, positions)
        value_at = (row, some, slice(None), positions) if value_transposed else (row, some, positions)
        return (
            pltpu.make_async_copy(key_hbm.at[key_at], key_ring.at[slot], arrivals.at[0, slot]),
            pltpu.make_async_copy(value_hbm.at[value_at], value_ring.at[slot], arrivals.at[1, slot]),
        )

    def start_next_copy() -> None:
        step, block, slot = state[ISSUE_STEP], state[ISSUE_BLOCK], state[ISSUE_SLOT]

        @pl.when(step < num_steps)
        def _() -> None:
            first, count = span(step)
            row = lax.div(step, head_steps * query_steps)
            head = lax.rem(lax.div(step, query_steps), head_steps) * heads
            base = pl.multiple_of(jnp.minimum(first + block * block_k, padded_length - block_k), align)
            for copy in copies(row, head, base, slot):
                copy.start()
            state[ISSUE_SLOT] = next_slot(slot)
            state[ISSUE_BLOCK] = block + 1

            @pl.when(block + 1 == count)
            def _() -> None:
                state[ISSUE_STEP] = first_step_with_keys(step + 1)
                state[ISSUE_BLOCK] = 0

    @pl.when(this_step == 0)
    def _() -> None:
        state[ISSUE_STEP] = first_step_with_keys(jnp.int32(0))
        state[ISSUE_BLOCK] = 0
        state[ISSUE_SLOT] = 0
        state[TAKE_SLOT] = 0
        for _ in range(num_buffers - 1):
            start_next_copy()

    # A sink is a key whose value is zero: it starts the running maximum and the running sum.
    for head in range(heads):
        if sinks is None:
            peak[head] = jnp.full((rows, LANES), LOWEST, jnp.float32)
            total[head] = jnp.zeros((rows, LANES), jnp.float32)
        else:
            sink = jnp.broadcast_to(sinks[head], (group, block_q, LANES)).reshape(rows, LANES)
            peak[head] = sink
            total[head] = jnp.full((rows, LANES), 1 / LANES, jnp.float32)
        weighted[head] = jnp.zeros(weighted.shape[1:], jnp.float32)

    first, count = span(this_step)
    row_start = bounds[0, :, 0:1]
    row_end = jnp.minimum(bounds[0, :, 1:2], length)

    def take_block(block: jax.Array, _: None) -> None:
        start_next_copy()
        slot = state[TAKE_SLOT]
        for copy in copies(0, 0, 0, slot):
            copy.wait()
        # The last block is moved back to end with the cache: positions before `wanted` were taken
        # by the block before.
        wanted = first + block * block_k
        base = jnp.minimum(wanted, padded_length - block_k)
        position = base + lax.broadcasted_iota(jnp.int32, (1, block_k), 1)
        valid = (position >= jnp.maximum(row_start, wanted)) & (position < row_end)

        # Some heads at a time, stage by stage: one head alone would leave the units waiting on each other.
        for some in range(0, heads, together):
            part = slice(some, some + together)
            each = range(some, some + together)
            score = jnp.stack(
                [
                    _dot(
                        query[0, head].reshape(rows, query.shape[4]),
                        key_ring[slot, head],
                        0 if key_transposed else 1,
                    )
                    for head in each
                ]
            )
            score = score * scale
            if softcap is not None:
                score = jnp.tanh(score * (1.0 / softcap)) * softcap
            if group == 1:
                score = jnp.where(valid[None], score, MASKED)
            else:
                score = score.reshape(together, group, block_q, block_k)
                score = jnp.where(valid[None, None], score, MASKED).reshape(together, rows, block_k)
            old_peak = peak[part]
            new_peak = jnp.maximum(old_peak, jnp.max(score, axis=2, keepdims=True))
            weight = jnp.exp(score - _to_width(new_peak, block_k))
            decay = jnp.exp(old_peak - new_peak)
            peak[part] = new_peak
            total[part] = total[part] * decay + _sum_by_lane(weight)
            weight = weight.astype(value_ring.dtype)
            mixed = jnp.stack(
                [_dot(weight[head - some], value_ring[slot, head], 1 if value_transposed else 0) for head in each]
            )
            weighted[part] = weighted[part] * _to_width(decay, weighted.shape[2]) + mixed
        state[TAKE_SLOT] = next_slot(slot)

    lax.fori_loop(0, count, take_block, None)

    for head in range(heads):
        norm = jnp.sum(total[head], axis=1, keepdims=True)
        result = weighted[head] * (1.0 / jnp.where(norm == 0.0, 1.0, norm))
        out[0, head] = result.astype(out.dtype).reshape(group, block_q, out.shape[4])


def _in_hbm(cache: jax.Array) -> jax.Array:
    """Keeps XLA from bringing the whole cache into VMEM before the call, which it does on tpu7x.

    Pallas' HLO interpreter cannot trace the constraint, and JAX has no public way to ask whether it is on: a
    `pallas_call` that is only traced tells.
    """
    asked = pl.pallas_call(lambda _, out: None, out_shape=jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    traced = jax.make_jaxpr(asked)(jax.ShapeDtypeStruct((8, LANES), jnp.float32))
    if any(equation.params.get("interpret") for equation in traced.eqns):
        return cache
    return pltpu.with_memory_space_constraint(cache, pltpu.HBM)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: jax.Array,
    sinks: Optional[jax.Array] = None,  # noqa: UP045  (torch's schema inference reads this)
    *,
    scale: float,
    softcap: Optional[float] = None,  # noqa: UP045
    block_q: Optional[int] = None,  # noqa: UP045
    block_k: Optional[int] = None,  # noqa: UP045
    num_buffers: Optional[int] = None,  # noqa: UP045
) -> jax.Array:
    """Attention of query [B, Hq, T, D] over a cache key [B, Hkv, S, D], value [B, Hkv, S, Dv].

    bounds int32 [B, 1, T, 2]: first valid key and one past the last valid key of each query; an empty
    interval gives a row of zeros. sinks [Hq]: one more logit in each softmax, with a value of zero.
    Query head h reads key/value head h // (Hq // Hkv). The logits are scaled, then capped, then masked,
    in float32; the result [B, Hq, T, Dv] has the query's dtype. To be called under `jax.jit`.
    """
    batch, query_heads, queries, key_dim = query.shape
    _, kv_heads, length, value_dim = value.shape
    group = query_heads // kv_heads
    key_transposed, value_transposed = key_dim % LANES != 0, value_dim % LANES != 0
    align = LANES if key_transposed or value_transposed else SUBLANES
    decode = queries == 1
    bounds = bounds.astype(jnp.int32).reshape(batch, queries, 2)

    padded_length = round_up(length, align)
    if padded_length != length:
        missing = ((0, 0), (0, 0), (0, padded_length - length), (0, 0))
        key, value = jnp.pad(key, missing), jnp.pad(value, missing)
    if decode:  # the heads of a group take the place of the queries
        inner_group, padded_queries = 1, group
        grouped = query.reshape(batch, kv_heads, 1, group, key_dim)
    else:
        inner_group, padded_queries = group, round_up(queries, SUBLANES)
        extra = padded_queries - queries
        grouped = query.reshape(batch, kv_heads, group, queries, key_dim)
        if extra:
            grouped = jnp.pad(grouped, ((0, 0), (0, 0), (0, 0), (0, extra), (0, 0)))
            bounds = jnp.pad(bounds, ((0, 0), (0, extra), (0, 0)))

    blocks = choose_blocks(
        kv_heads=kv_heads,
        group=inner_group,
        queries=padded_queries,
        length=padded_length,
        key_dim=key_dim,
        value_dim=value_dim,
        itemsize=key.dtype.itemsize,
        decode=decode,
        block_q=None if decode else block_q,
        block_k=block_k,
        num_buffers=num_buffers,
    )
    query_steps = padded_queries // blocks.block_q
    if decode:
        spans = bounds
        bounds_block, bounds_map = (1, 1, 2), lambda b, h, t, _: (b, 0, 0)
    else:
        start, end = bounds[..., 0], bounds[..., 1]
        filled = start < end
        by_step = (batch, query_steps, blocks.block_q)
        spans = jnp.stack(
            [
                jnp.where(filled, start, length).reshape(by_step).min(-1),
                jnp.where(filled, end, 0).reshape(by_step).max(-1),
            ],
            axis=-1,
        )
        bounds_block, bounds_map = (1, blocks.block_q, 2), lambda b, h, t, _: (b, t, 0)

    def block_of(width: int) -> Any:
        return pl.BlockSpec((1, blocks.heads, inner_group, blocks.block_q, width), lambda b, h, t, _: (b, h, 0, t, 0))

    operands = [grouped, bounds]
    in_specs = [block_of(key_dim), pl.BlockSpec(bounds_block, bounds_map)]
    if sinks is not None:
        per_row = (kv_heads, 1, group, 1) if decode else (kv_heads, group, 1, 1)
        operands.append(sinks.astype(jnp.float32).reshape(per_row))
        in_specs.append(pl.BlockSpec((blocks.heads, *per_row[1:]), lambda b, h, t, _: (h, 0, 0, 0)))
    for cache, transposed in ((key, key_transposed), (value, value_transposed)):
        operands.append(_in_hbm(cache.swapaxes(2, 3) if transposed else cache))
        in_specs.append(pl.BlockSpec(memory_space=pltpu.HBM))

    def ring_of(width: int, transposed: bool) -> Any:
        tail = (width, blocks.block_k) if transposed else (blocks.block_k, width)
        return pltpu.VMEM((blocks.num_buffers, blocks.heads, *tail), key.dtype)

    rows = inner_group * blocks.block_q
    out = pl.pallas_call(
        functools.partial(
            _attention_kernel,
            blocks=blocks,
            scale=scale,
            softcap=softcap,
            has_sinks=sinks is not None,
            length=length,
            padded_length=padded_length,
            align=align,
            key_transposed=key_transposed,
            value_transposed=value_transposed,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, kv_heads // blocks.heads, query_steps),
            in_specs=in_specs,
            out_specs=block_of(value_dim),
            scratch_shapes=[
                ring_of(key_dim, key_transposed),
                ring_of(value_dim, value_transposed),
                pltpu.VMEM((blocks.heads, rows, LANES), jnp.float32),
                pltpu.VMEM((blocks.heads, rows, LANES), jnp.float32),
                pltpu.VMEM((blocks.heads, rows, value_dim), jnp.float32),
                pltpu.SMEM((4,), jnp.int32),
                pltpu.SemaphoreType.DMA((2, blocks.num_buffers)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((*grouped.shape[:4], value_dim), query.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary", "arbitrary"),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        name="static_attention_decode" if decode else "static_attention_prefill",
    )(spans.reshape(-1), *operands)
    if decode:
        return out.reshape(batch, query_heads, 1, value_dim)
    return out[:, :, :, :queries].reshape(batch, query_heads, queries, value_dim)

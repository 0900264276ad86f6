"""Small Pallas kernels, each with something that can be worked out by hand; libtpu compiles them in its own process."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def add_one(x):
    """One grid step, no loop: each of x's registers is loaded and stored once."""

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1.0

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="add_one")(x)


def nested_loops(x, *, outer, inner):
    """A loop in a loop; both trip counts are constants."""

    def kernel(x_ref, out_ref, sums):
        def each(i, _):
            def add(j, _):
                sums[0] = sums[0] + i * j
                return None

            sums[1] = sums[1] + i
            return jax.lax.fori_loop(0, inner, add, None)

        sums[0] = 0
        sums[1] = 0
        jax.lax.fori_loop(0, outer, each, None)
        out_ref[...] = x_ref[...] + (sums[0] + sums[1]).astype(jnp.float32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SMEM((2,), jnp.int32)],
        name="nested_loops",
    )(x)


def sum_of_blocks(x, *, blocks):
    """A pipeline over blocks: the sum is cleared in the first step and written out in the last."""
    rows = x.shape[0] // blocks

    def kernel(x_ref, out_ref, total):
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]

        @pl.when(step == blocks - 1)
        def _():
            out_ref[...] = jnp.exp(total[...])

    return pl.pallas_call(
        kernel,
        grid=(blocks,),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((rows, x.shape[1]), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, x.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, x.shape[1]), jnp.float32)],
        name="sum_of_blocks",
    )(x)


def counted_copies(x, counts):
    """Copies as many blocks of 64 rows as `counts` says: a loop that a scalar-prefetch operand steers."""
    rows = 64

    def kernel(steer, x_hbm, out_ref, block, arrived):
        def take(i, _):
            copy = pltpu.make_async_copy(x_hbm.at[pl.ds(pl.multiple_of(i * rows, rows), rows)], block, arrived)
            copy.start()
            copy.wait()
            out_ref[...] += block[...]

        out_ref[...] = jnp.zeros_like(out_ref)
        jax.lax.fori_loop(0, steer[0], take, None)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec((rows, x.shape[1]), lambda i, _: (0, 0)),
            scratch_shapes=[pltpu.VMEM((rows, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, x.shape[1]), x.dtype),
        name="counted_copies",
    )(counts.reshape(-1) + 1, pltpu.with_memory_space_constraint(x, pltpu.HBM))


def matmul(x, y, *, block_m, block_n, block_k):
    """The blocked product of JAX's documentation: a float32 sum in VMEM over the blocks of the contracted size."""
    (m, k), n = x.shape, y.shape[1]

    def kernel(x_ref, y_ref, out_ref, total, *, steps):
        @pl.when(pl.program_id(2) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _():
            out_ref[...] = total[...].astype(out_ref.dtype)

    return pl.pallas_call(
        functools.partial(kernel, steps=k // block_k),
        grid=(m // block_m, n // block_n, k // block_k),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="matmul",
    )(x, y)


def xla_matmul(x, y):
    return x @ y


def xla_two_steps(x, y):
    """A product and a softmax of it: two fusions at least."""
    return jax.nn.softmax((x @ y).astype(jnp.float32), axis=-1).astype(x.dtype)


def masked_blocks(x, runs):
    """Exponentials of those blocks whose entry in `runs` [rows, columns], of 8-bit integers, is not 0."""
    rows, columns = runs.shape

    def kernel(steer, x_ref, out_ref):
        out_ref[...] = x_ref[...]

        @pl.when(steer[pl.program_id(0), pl.program_id(1)].astype(jnp.int32) > 0)
        def _():
            out_ref[...] = jnp.exp(x_ref[...])

    block = pl.BlockSpec((8, 128), lambda i, j, _: (i, j))
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(rows, columns), in_specs=[block], out_specs=block
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        name="masked_blocks",
    )(runs, x)

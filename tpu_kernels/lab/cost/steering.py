"""What a traced function tells of its Pallas kernels: the numbers that steer them in a given call, and their VMEM.

The numbers are the values of the scalar-prefetch operands. A kernel's wrapper computes them from some of its arguments
(bounds, lengths, page tables); here the part of the wrapper that depends on those arguments alone is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_CALLS: Final = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call")

TILE: Final = (8, 128)
"""Rows and lanes of a vector register; arrays in VMEM are padded to it."""


class PallasCall(NamedTuple):
    """One `pallas_call`."""

    scalars: dict[int, list[int]]
    """Its scalar-prefetch operands by number, as they lie in scalar memory, in words."""
    vmem_bytes: int
    """Of its scratch arrays and of two buffers for each block: what it takes at least."""


def pallas_calls(
    function: Callable[..., Any], arguments: Sequence[Any], values: Mapping[int, Any]
) -> dict[str, PallasCall]:
    """Each `pallas_call` in `function`, by name.

    arguments   shapes and dtypes that the function is traced with; None for one that is left out
    values      contents of some arguments, by position, as nested lists
    """
    closed = jax.make_jaxpr(function)(*arguments)
    places = [place for place, argument in enumerate(arguments) if argument is not None]
    known: list[Any] = [
        jnp.asarray(values[place], arguments[place].dtype) if place in values else None for place in places
    ]
    found: dict[str, PallasCall] = {}
    _walk(closed.jaxpr, closed.consts, known, found)
    return found


def _walk(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], found: dict[str, PallasCall]) -> list[Any]:
    """What is known of the results of `jaxpr`, None for the rest; kernels on the way are added to `found`."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        operands = [value(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        results: list[Any] = [None] * len(equation.outvars)
        if equation.primitive.name == "pallas_call":
            steers = operands[: equation.params["grid_mapping"].num_index_operands]
            scalars = {
                number: scalar_words(np.asarray(operand))
                for number, operand in enumerate(steers)
                if operand is not None
            }
            found[_name(equation)] = PallasCall(scalars, _vmem_bytes(equation.params))
        elif equation.primitive.name in _CALLS and inner is not None:
            results = _walk(inner.jaxpr, inner.consts, operands, found)
        elif all(operand is not None for operand in operands):
            answer = equation.primitive.bind(*operands, **equation.params)
            results = list(answer) if equation.primitive.multiple_results else [answer]
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def scalar_words(array: np.ndarray[Any, Any]) -> list[int]:
    """An integer array as 32-bit words of scalar memory.

    The last dimension is padded to the lanes of a register, and narrow elements of neighbouring rows share a word, the
    first row lowest. An array of one dimension lies as it is.
    """
    packed = max(4 // array.dtype.itemsize, 1)
    if array.ndim < 2:
        return [int(value) for value in array.ravel()]
    *outer, rows, columns = array.shape
    padded = np.zeros((math.prod(outer), -(-rows // packed) * packed, -(-columns // TILE[1]) * TILE[1]), np.int64)
    padded[:, :rows, :columns] = array.reshape(-1, rows, columns)
    bits = 32 // packed
    parts = padded.reshape(padded.shape[0], -1, packed, padded.shape[2]) % (1 << bits)
    words = sum(parts[:, :, place] << (bits * place) for place in range(packed))
    return [int(word) for word in np.asarray(words).astype(np.uint32).astype(np.int32).ravel()]


def _vmem_bytes(params: Mapping[str, Any]) -> int:
    mapping, kernel = params["grid_mapping"], params["jaxpr"]
    blocks = [block.transformed_block_aval for block in mapping.block_mappings]
    count = mapping.num_scratch_operands
    scratch = [variable.aval for variable in kernel.invars[len(kernel.invars) - count :]] if count else []
    return 2 * sum(map(_padded_bytes, blocks)) + sum(map(_padded_bytes, scratch))


def _padded_bytes(ref: Any) -> int:
    """Bytes of an array in VMEM; none for one in another memory, such as semaphores and scalars."""
    if str(ref.memory_space).rsplit(".", 1)[-1].lower() not in ("vmem", "default", "none"):
        return 0
    itemsize = int(jnp.dtype(ref.dtype).itemsize)
    sizes: list[int] = [1, 1, *ref.shape]
    outer, rows, lanes = sizes[:-2], sizes[-2], sizes[-1]
    rows, lanes = -(-rows // TILE[0]) * TILE[0], -(-lanes // TILE[1]) * TILE[1]
    return math.prod(outer) * rows * lanes * itemsize


def _name(equation: Any) -> str:
    name = equation.params.get("name")
    return str(name if name is not None else equation.params["name_and_src_info"].name)

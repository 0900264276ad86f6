"""Which numbers steer a Pallas kernel in a given call: the values of its scalar-prefetch operands.

A kernel's wrapper computes them from some of its arguments (bounds, lengths, page tables). They are worked out here by
running the part of the wrapper that depends on those arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

Steering = dict[str, dict[int, list[int]]]
"""Values of scalar-prefetch operands by number, for each kernel by name."""


def steering_values(function: Callable[..., Any], arguments: Sequence[Any], values: Mapping[int, Any]) -> Steering:
    """For each `pallas_call` in `function`, by name, the values of its scalar-prefetch operands by number.

    arguments   shapes and dtypes that the function is traced with; None for one that is left out
    values      contents of some arguments, by position, as nested lists
    """
    closed = jax.make_jaxpr(function)(*arguments)
    places = [place for place, argument in enumerate(arguments) if argument is not None]
    known: list[Any] = [
        jnp.asarray(values[place], arguments[place].dtype) if place in values else None for place in places
    ]
    found: Steering = {}
    _walk(closed.jaxpr, closed.consts, known, found)
    return found


def _walk(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], found: Steering) -> list[Any]:
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
            found[_name(equation)] = {
                number: np.asarray(operand).ravel().tolist()
                for number, operand in enumerate(steers)
                if operand is not None
            }
        elif equation.primitive.name in ("pjit", "jit", "closed_call") and inner is not None:
            results = _walk(inner.jaxpr, inner.consts, operands, found)
        elif all(operand is not None for operand in operands):
            answer = equation.primitive.bind(*operands, **equation.params)
            results = list(answer) if equation.primitive.multiple_results else [answer]
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _name(equation: Any) -> str:
    name = equation.params.get("name")
    return str(name if name is not None else equation.params["name_and_src_info"].name)

"""Activations by name, on float32 arrays: plain JAX that also lowers inside of a Pallas TPU kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def _silu(x: jax.Array) -> jax.Array:
    return x * lax.logistic(x)


def _gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def _clipped_gelu(x: jax.Array) -> jax.Array:
    return jnp.clip(_gelu(x), -10.0, 10.0)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * lax.logistic(1.702 * x)


def _relu(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


def _squared_relu(x: jax.Array) -> jax.Array:
    positive = _relu(x)
    return positive * positive


def _relu6(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0.0, 6.0)


def _leaky_relu(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0.0, x, 0.01 * x)


def _hardswish(x: jax.Array) -> jax.Array:
    return x * (jnp.clip(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))


def _softplus(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _mish(x: jax.Array) -> jax.Array:
    return x * jnp.tanh(_softplus(x))


def _laplace(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + lax.erf((x - 0.707107) * (1.0 / (0.282095 * math.sqrt(2.0)))))


def _sqrt_softplus(x: jax.Array) -> jax.Array:
    return jnp.sqrt(_softplus(x))


def _identity(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_10": _clipped_gelu,
    "quick_gelu": _quick_gelu,
    "relu": _relu,
    "relu2": _squared_relu,
    "relu6": _relu6,
    "leaky_relu": _leaky_relu,
    "sigmoid": lax.logistic,
    "tanh": jnp.tanh,
    "hardswish": _hardswish,
    "mish": _mish,
    "laplace": _laplace,
    "sqrtsoftplus": _sqrt_softplus,
    "identity": _identity,
}


def activate(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` of every element of a float32 array, in float32.

    Raises:
        ValueError: there is no activation of that name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return ACTIVATIONS[name](x)

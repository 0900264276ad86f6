"""Compiles a job of `aot` with libtpu, in a worker of its own process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from tpu_kernels.lab.jax_source import load_source


def device_of(topology_name: str) -> Any:
    """The first device of a TPU topology that need not be there."""
    return topologies.get_topology_desc(platform="tpu", topology_name=topology_name).devices[0]


@functools.cache
def _module(path: str) -> ModuleType:
    return load_source(Path(path))


def call_of(request: dict[str, Any]) -> Callable[..., Any]:
    """The function that a job names, with its keywords."""
    function, keywords = getattr(_module(request["kernel"]), request["function"]), request["keywords"]

    def call(*arguments: Any) -> Any:
        return function(*arguments, **keywords)

    return call


def abstract_arguments(request: dict[str, Any], device: Any) -> list[Any]:
    """A job's arguments by shape and dtype alone, on `device`; None for one that is left out."""
    struct: Any = jax.ShapeDtypeStruct
    sharding = jax.sharding.SingleDeviceSharding(device)
    return [
        argument and struct(tuple(argument[0]), jnp.dtype(argument[1]), sharding=sharding)
        for argument in request["arguments"]
    ]


def compile_call(call: Callable[..., Any], arguments: list[Any]) -> Any:
    """What libtpu makes of it for the topology of the arguments' device."""
    return jax.jit(call).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()

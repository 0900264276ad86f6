"""Compiles JAX functions with libtpu for one TPU topology, in a process of its own.

Started by `aot`, never imported by it: one JSON job a line on standard input, one JSON answer a line on standard
output, in the same order. The first answer says whether the topology could be made.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from tpu_kernels.lab.jax_source import load_source


def main(topology_name: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers go to a handle of their own
    topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name)
    device: Any = topology.devices[0]
    print(json.dumps({"device_kind": device.device_kind}), file=answers, flush=True)
    sharding = jax.sharding.SingleDeviceSharding(device)
    for line in sys.stdin:
        print(json.dumps(_compile(json.loads(line), sharding)), file=answers, flush=True)


@functools.cache
def _module(path: str) -> Any:
    return load_source(Path(path))


def _compile(job: dict[str, Any], sharding: Any) -> dict[str, Any]:
    started = time.monotonic()
    try:
        function, keywords = getattr(_module(job["kernel"]), job["function"]), job["keywords"]
        arguments = [argument and _abstract(argument[0], argument[1], sharding) for argument in job["arguments"]]
        traced = jax.jit(lambda *args: function(*args, **keywords)).trace(*arguments)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    except Exception as error:  # whatever loading, tracing, lowering or libtpu raises is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    return {"error": None, "seconds": time.monotonic() - started, "temp_bytes": temp_bytes}


def _abstract(shape: list[int], dtype: str, sharding: Any) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(tuple(shape), jnp.dtype(dtype), sharding=sharding)


if __name__ == "__main__":
    main(sys.argv[1])

"""Times JAX functions on the first device of this machine, in a process of its own.

Started by `timing`, never imported by it. One JSON request a line on standard input, one JSON answer a line on
standard output, in the same order; the first line names the device.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from tpu_kernels.lab.jax_compile import call_of
from tpu_kernels.lab.worker import Answering, serve


def main() -> None:
    def start() -> tuple[dict[str, Any], Answering]:
        device = jax.devices()[0]
        greeting = {"platform": device.platform, "device_kind": device.device_kind}
        return greeting, lambda request: {"seconds": _seconds(request)}

    serve(start)


def _seconds(request: dict[str, Any]) -> float:
    """The median over some runs of many calls, each waited for only at the end of its run."""
    values = {int(number): value for number, value in request["values"].items()}
    arguments = [
        argument and _array(argument[0], argument[1], values.get(number), number)
        for number, argument in enumerate(request["arguments"])
    ]
    call = jax.jit(call_of(request))
    wait: Any = jax.block_until_ready
    wait(call(*arguments))
    samples = []
    for _ in range(request["samples"]):
        started = time.perf_counter()
        for _ in range(request["calls"]):
            result = call(*arguments)
        wait(result)
        samples.append((time.perf_counter() - started) / request["calls"])
    return float(statistics.median(samples))


def _array(shape: list[int], dtype: str, value: Any, seed: int) -> jax.Array:
    if value is not None:
        return jnp.asarray(value, dtype)
    return jax.random.normal(jax.random.key(seed), tuple(shape), jnp.float32).astype(dtype)


if __name__ == "__main__":
    main()

"""Times JAX functions on the first device of this machine, in a process of its own.

Started by `timing`, never imported by it. One JSON request a line on standard input, one JSON answer a line on
standard output, in the same order; the first line names the device.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tpu_kernels.lab.jax_source import load_source


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers go to a handle of their own
    device = jax.devices()[0]
    print(json.dumps({"platform": device.platform, "device_kind": device.device_kind}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"error": None, "seconds": _seconds(request)}
    except Exception as error:  # whatever loading, tracing or running raises is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": None}


def _seconds(request: dict[str, Any]) -> float:
    """The median over some runs of many calls, each waited for only at the end of its run."""
    function, keywords = getattr(load_source(Path(request["kernel"])), request["function"]), request["keywords"]
    values = {int(number): value for number, value in request["values"].items()}
    arguments = [
        argument and _array(argument[0], argument[1], values.get(number), number)
        for number, argument in enumerate(request["arguments"])
    ]
    call = jax.jit(lambda *args: function(*args, **keywords))
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

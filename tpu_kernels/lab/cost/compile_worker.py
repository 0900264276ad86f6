"""Compiles JAX functions with libtpu for one topology and keeps the compiler's dumps, in a process of its own.

Started by `compiling`, never imported by it; requests and answers as `lab.processes` has them. libtpu writes all its
dumps to one folder, named in LIBTPU_INIT_ARGS before it is loaded; each request's are moved to a folder of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from tpu_kernels.lab.cost.steering import pallas_calls
from tpu_kernels.lab.jax_source import load_source


def main(topology_name: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers go to a handle of their own
    device: Any = topologies.get_topology_desc(platform="tpu", topology_name=topology_name).devices[0]
    print(json.dumps({"device_kind": device.device_kind}), file=answers, flush=True)
    sharding = jax.sharding.SingleDeviceSharding(device)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), sharding)), file=answers, flush=True)


def _answer(request: dict[str, Any], sharding: Any) -> dict[str, Any]:
    started = time.monotonic()
    folder = Path(request["folder"])
    try:
        function, keywords = getattr(load_source(Path(request["kernel"])), request["function"]), request["keywords"]
        struct: Any = jax.ShapeDtypeStruct
        arguments = [
            argument and struct(tuple(argument[0]), jnp.dtype(argument[1]), sharding=sharding)
            for argument in request["arguments"]
        ]

        def call(*args: Any) -> Any:
            return function(*args, **keywords)

        hlo = jax.jit(call).trace(*arguments).lower(lowering_platforms=("tpu",)).compile().as_text()
        values = {int(number): value for number, value in request["values"].items()}
        kernels = pallas_calls(call, arguments, values)
    except Exception as error:  # whatever loading, tracing, lowering or libtpu raises is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    finally:
        _move(Path(request["dumped_to"]), folder)
    (folder / "optimized.hlo").write_text(hlo)
    return {
        "error": None,
        "seconds": time.monotonic() - started,
        "kernels": {name: call._asdict() for name, call in kernels.items()},
    }


def _move(dumped_to: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in dumped_to.iterdir():
        path.rename(folder / path.name)


if __name__ == "__main__":
    main(sys.argv[1])

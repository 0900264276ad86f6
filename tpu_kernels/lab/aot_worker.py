"""Compiles JAX functions with libtpu for one TPU topology, in a process of its own.

Started by `aot`, never imported by it: one JSON job a line on standard input, one JSON answer a line on standard
output, in the same order. The first answer says whether the topology could be made.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.lab.memory import kernel_vmem

_INSTRUCTION: Final = re.compile(r"^\s*(ROOT )?%\S+ = (?P<type>\(.*?\)|\S+) (?P<opcode>[\w-]+)\(")
_SHAPE: Final = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_ITEM_BYTES: Final = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1}
_MOVES_NOTHING: Final = {
    "parameter",
    "bitcast",
    "tuple",
    "get-tuple-element",
    "constant",
    "custom-call",
    "copy-done",
}


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
        hlo = compiled.as_text()
        answer = {"moved_bytes": moved_bytes(hlo), "memory": _memory(compiled), "vmem_bytes": kernel_vmem(hlo)}
    except Exception as error:  # whatever loading, tracing, lowering or libtpu raises is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    return {"error": None, "seconds": time.monotonic() - started, **answer}


def _memory(compiled: Any) -> dict[str, int]:
    stats = compiled.memory_analysis()
    fields = ("argument", "output", "alias", "temp", "generated_code")
    return {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in fields}


def moved_bytes(hlo: str) -> int:
    """Bytes written by what XLA runs around the kernels: copies, pads, changes of layout, fusions.

    From the text of an optimised module. The compiler's own count of temporary memory does not tell: on chips with a
    large VMEM it lays such copies there.
    """
    entry = hlo[hlo.index("\nENTRY ") :].split("\n}", 1)[0]
    total = 0
    for line in entry.splitlines()[1:]:
        found = _INSTRUCTION.match(line)
        if found and found["opcode"] not in _MOVES_NOTHING:
            shapes = _SHAPE.findall(found["type"])
            for dtype, sizes in shapes[:1] if found["opcode"] == "copy-start" else shapes:
                total += _ITEM_BYTES.get(dtype, 4) * math.prod(int(size) for size in sizes.split(",") if size)
    return total


def _abstract(shape: list[int], dtype: str, sharding: Any) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(tuple(shape), jnp.dtype(dtype), sharding=sharding)


if __name__ == "__main__":
    main(sys.argv[1])

"""Compiles JAX functions with libtpu for one TPU topology, in a process of its own.

Started by `aot`, never imported by it; requests and answers as `lab.processes` has them.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from tpu_kernels.lab.cost.hlo import parse_hlo
from tpu_kernels.lab.jax_compile import abstract_arguments, call_of, compile_call, device_of
from tpu_kernels.lab.memory import kernel_vmem
from tpu_kernels.lab.worker import Answering, serve

_KERNEL: Final = "custom-call"


def main(topology_name: str) -> None:
    def start() -> tuple[dict[str, Any], Answering]:
        device = device_of(topology_name)
        return {"device_kind": device.device_kind}, lambda job: _compile(job, device)

    serve(start)


def _compile(job: dict[str, Any], device: Any) -> dict[str, Any]:
    compiled = compile_call(call_of(job), abstract_arguments(job, device))
    hlo = compiled.as_text()
    return {"moved_bytes": moved_bytes(hlo), "memory": _memory(compiled), "vmem_bytes": kernel_vmem(hlo)}


def _memory(compiled: Any) -> dict[str, int]:
    stats = compiled.memory_analysis()
    fields = ("argument", "output", "alias", "temp", "generated_code")
    return {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in fields}


def moved_bytes(hlo: str) -> int:
    """Bytes written by what XLA runs around the kernels: copies, pads, changes of layout, fusions.

    From the text of an optimised module. The compiler's own count of temporary memory does not tell: on chips with a
    large VMEM it lays such copies there.
    """
    total = 0
    for one in parse_hlo(hlo).entry:
        if not (one.is_free or one.ends_copy or one.opcode == _KERNEL):
            written = one.results[:1] if one.starts_copy else one.results
            total += sum(array.bytes for array in written)
    return total


if __name__ == "__main__":
    main(sys.argv[1])

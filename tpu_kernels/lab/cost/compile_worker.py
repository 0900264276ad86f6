"""Compiles JAX functions with libtpu for one topology and keeps the compiler's dumps, in a process of its own.

Started by `compiling`, never imported by it; requests and answers as `lab.processes` has them. libtpu writes all its
dumps to one folder, named in LIBTPU_INIT_ARGS before it is loaded; each request's are moved to a folder of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax

from tpu_kernels.lab.cost.steering import pallas_calls
from tpu_kernels.lab.jax_compile import abstract_arguments, call_of, compile_call, device_of
from tpu_kernels.lab.worker import Answering, serve


def main(topology_name: str) -> None:
    def start() -> tuple[dict[str, Any], Answering]:
        device = device_of(topology_name)
        return {"device_kind": device.device_kind}, lambda request: _answer(request, device)

    serve(start)


def _answer(request: dict[str, Any], device: Any) -> dict[str, Any]:
    folder = Path(request["folder"])
    try:
        call, arguments = call_of(request), abstract_arguments(request, device)
        compiled = compile_call(call, arguments)
        values = {int(number): value for number, value in request["values"].items()}
        kernels = pallas_calls(call, arguments, values)
    finally:
        _move(Path(request["dumped_to"]), folder)
    (folder / "optimized.hlo").write_text(_text_of(compiled, folder))
    return {"kernels": {name: found._asdict() for name, found in kernels.items()}}


def _text_of(compiled: Any, folder: Path) -> str:
    """The optimised module: libtpu's own print of it where this jaxlib is too old to read it."""
    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        printed = sorted(folder.glob("*-TLP-hlo.txt"))
        if not printed:
            raise
        return printed[-1].read_text()


def _move(dumped_to: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in dumped_to.iterdir():
        path.rename(folder / path.name)


if __name__ == "__main__":
    main(sys.argv[1])

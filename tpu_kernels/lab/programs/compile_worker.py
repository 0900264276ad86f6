"""Compiles captured programs with libtpu for one topology, in a process of its own.

Started by `compiling`, never imported by it; requests and answers as `lab.processes` has them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tpu_kernels.lab.programs.executable import Compiler
from tpu_kernels.lab.worker import Answering, serve


def main(topology: str) -> None:
    def start() -> tuple[dict[str, Any], Answering]:
        compiler = Compiler(topology)
        return {"topology": topology}, lambda request: _compile(compiler, request)

    serve(start)


def _compile(compiler: Compiler, request: dict[str, Any]) -> dict[str, Any]:
    stablehlo, options = Path(request["stablehlo"]).read_bytes(), Path(request["options"]).read_bytes()
    started = time.monotonic()
    with compiler.compiled(stablehlo, options) as executable:
        seconds = time.monotonic() - started
        Path(request["hlo"]).write_text(executable.hlo())
        return {"seconds": seconds, "memory": executable.memory()}


if __name__ == "__main__":
    main(sys.argv[1])

"""Compiles captured programs with libtpu for one topology, in a process of its own.

Started by `compiling`, never imported by it; requests and answers as `lab.processes` has them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tpu_kernels.lab.programs.executable import Compiler


def main(topology: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers go to a handle of their own
    compiler = Compiler(topology)
    print(json.dumps({"topology": topology}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_compile(compiler, json.loads(line))), file=answers, flush=True)


def _compile(compiler: Compiler, request: dict[str, Any]) -> dict[str, Any]:
    stablehlo, options = Path(request["stablehlo"]).read_bytes(), Path(request["options"]).read_bytes()
    started = time.monotonic()
    try:
        with compiler.compiled(stablehlo, options) as executable:
            seconds = time.monotonic() - started
            Path(request["hlo"]).write_text(executable.hlo())
            return {"error": None, "seconds": seconds, "memory": executable.memory()}
    except Exception as error:  # whatever libtpu says is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}


if __name__ == "__main__":
    main(sys.argv[1])

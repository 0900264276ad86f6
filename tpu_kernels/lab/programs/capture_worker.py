"""Captures programs on the emulated TPU, in a process of its own.

Started by `capturing`, never imported by it: `python -m …capture_worker FOLDER`, with a JSON request on standard
input. The programs go into FOLDER, the answer onto standard output: `{"error": …, "failures": …}`, the second by the
number of the function that failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tpu_kernels import emulator
from tpu_kernels.errors import TpuKernelsError
from tpu_kernels.lab.programs.program import Program, save_programs
from tpu_kernels.lab.programs.requests import FunctionCase, ModelCase


def main(folder: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; the answer goes to a handle of its own
    request = json.loads(sys.stdin.read())
    answer: dict[str, Any] = {"error": None, "failures": {}}
    try:
        group = request.get("model", {})
        emulator.start(rank=group.get("rank", 0), ranks=group.get("tp_size", 1))
        save_programs(_captured(request, answer["failures"]), Path(folder))
    except Exception as error:
        answer["error"] = _told(error)
    print(json.dumps(answer), file=answers, flush=True)


def _told(error: Exception) -> dict[str, Any]:
    """One of our exceptions by its type; a model's or a function's own failure as text."""
    if isinstance(error, TpuKernelsError):
        return {"type": type(error).__name__, "message": str(error)}
    return {"type": None, "message": f"{type(error).__name__}: {error}"}


def _captured(request: dict[str, Any], failures: dict[int, Any]) -> list[Program]:
    if "model" in request:
        from tpu_kernels.lab.programs.model_steps import capture_steps

        return capture_steps(ModelCase(**{**request["model"], "steps": tuple(request["model"]["steps"])}))
    from tpu_kernels.lab.programs.function import capture_function

    programs = []
    for number, case in enumerate(request["functions"]):
        try:
            programs.append(capture_function(FunctionCase(**case)))
        except Exception as error:
            failures[number] = _told(error)
    return programs


if __name__ == "__main__":
    main(sys.argv[1])

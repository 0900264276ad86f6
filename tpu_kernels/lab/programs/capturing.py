"""Captures programs in a process of its own, in which the emulator runs; any process may ask."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tpu_kernels import errors
from tpu_kernels.errors import CompileError, TpuKernelsError, explain
from tpu_kernels.lab.messages import one_line
from tpu_kernels.lab.processes import child_environment, last_line
from tpu_kernels.lab.programs.program import Program, load_programs
from tpu_kernels.lab.programs.requests import FunctionCase, ModelCase

_WORKER: Final = "tpu_kernels.lab.programs.capture_worker"
_CHIP_VARIABLE: Final = "TPU_KERNELS_CHIP"


def capture_functions(cases: Sequence[FunctionCase], *, timeout: float = 600.0) -> list[Program]:
    """A program for each case, in order, with the case's name, as torch.compile and torch_tpu make it for a TPU.

    Raises CompileError where a function fails or is not one program, or after `timeout` seconds; EmulatorError where
    the emulator cannot start.
    """
    found = capture_each(cases, timeout=timeout)
    for one in found:
        if isinstance(one, TpuKernelsError):
            raise one
    return [one for one in found if isinstance(one, Program)]


def capture_each(cases: Sequence[FunctionCase], *, timeout: float = 600.0) -> list[Program | TpuKernelsError]:
    """The same; in the place of a program that could not be captured stands the exception that says why."""
    programs, failures = _ask({"functions": [asdict(case) for case in cases]}, timeout, child_environment())
    captured = iter(programs)
    return [
        _exception(failures[str(number)]) if str(number) in failures else next(captured) for number in range(len(cases))
    ]


def capture_model(case: ModelCase, *, timeout: float = 1800.0) -> list[Program]:
    """The programs of a model's steps, named "prefill" and "decode", as `generate` compiles them for a TPU.

    A step that became several programs has the largest under its name and the others as "decode 2" and so on. With
    flow "tpu-kernels" the program's `note` says which kernels its layers took.

    Raises ModelStructureError where there is no config of a causal language model, CacheTooLargeError where
    tpu_kernels itself refuses the cache on that generation, CompileError where the model's own code fails or compiles
    no step, or after `timeout` seconds, and EmulatorError where the emulator cannot start.
    """
    environment = child_environment(**{_CHIP_VARIABLE: case.generation})
    programs, _ = _ask({"model": asdict(case)}, timeout, environment)
    return programs


def _ask(
    request: dict[str, Any], timeout: float, environment: dict[str, str]
) -> tuple[list[Program], dict[str, dict[str, Any]]]:
    """The programs that were captured, and what is told of the functions that failed, by their number."""
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-capture-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", _WORKER, folder],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=timeout,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                explain(f"Capturing took more than {timeout:.0f} s.", next_step="raise the timeout")
            ) from error
        if done.returncode or not done.stdout.strip():
            raise CompileError(
                explain(
                    "The process that captures programs died.",
                    got=f"exit code {done.returncode}: {last_line(done.stderr)}",
                )
            )
        answer = json.loads(done.stdout.splitlines()[-1])
        if answer["error"] is not None:
            raise _exception(answer["error"])
        return load_programs(Path(folder)), answer["failures"]


def _exception(failure: dict[str, Any]) -> TpuKernelsError:
    """The worker's exception: one of ours again, or a CompileError with its first line."""
    kind = getattr(errors, failure["type"], None) if failure["type"] else None
    if kind is not None:
        exception: TpuKernelsError = kind(failure["message"])
        return exception
    return CompileError(
        explain(
            "The program could not be captured: the model's or the function's own code failed.",
            got=one_line(failure["message"]),
        )
    )

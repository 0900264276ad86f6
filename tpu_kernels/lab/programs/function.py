"""The program of a plain torch function. For a process in which the emulator runs."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tpu_kernels import emulator
from tpu_kernels.emulator import CapturedProgram, CapturedPrograms
from tpu_kernels.errors import CompileError, explain
from tpu_kernels.lab.programs.program import Program
from tpu_kernels.lab.programs.requests import FunctionCase
from tpu_kernels.ops.case import Argument


def capture_function(case: FunctionCase) -> Program:
    """Compile the function for the case's arguments with torch_tpu; return its one program.

    Raises CompileError where it became more than one.
    """
    module, _, name = case.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    compiled = torch.compile(
        lambda *arguments: function(*arguments, **case.keywords), backend="tpu", dynamic=False, fullgraph=True
    )
    with emulator.capture() as programs, torch.no_grad():
        arguments = [_tensor(argument) for argument in case.arguments]
        captured = programs_of(programs, lambda: compiled(*arguments)).programs
    if len(captured) != 1:
        raise CompileError(
            explain(
                f"{case.function} is not one program on a TPU.",
                needs="a function of tensors that torch.compile takes whole",
                got=", ".join(program.name for program in captured) or "none",
            )
        )
    return Program(case.name, captured[0].stablehlo, captured[0].compile_options, captured[0].name)


@dataclass(frozen=True)
class CapturedStep:
    """What a call made of itself: its programs, and how often each of them would run."""

    programs: list[CapturedProgram]
    runs: list[int]


def programs_of(programs: CapturedPrograms, call: Callable[[], Any]) -> CapturedStep:
    """What `call()` compiles and would run inside an open capture, without the programs that only reserve memory."""
    torch.accelerator.synchronize()
    known, ran = len(programs), len(programs.runs)
    call()
    torch.accelerator.synchronize()
    counts = Counter(programs.runs[ran:])
    touched = sorted({*range(known, len(programs)), *counts})  # what was compiled before may run again
    numbers = [number for number in touched if programs[number].name != "tt_jit_empty"]
    return CapturedStep([programs[number] for number in numbers], [counts[number] for number in numbers])


def _tensor(argument: Argument) -> torch.Tensor | None:
    if argument is None:
        return None
    shape, dtype = argument
    return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="tpu")

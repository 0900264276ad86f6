"""The program of a plain torch function. For a process in which the emulator runs."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tpu_kernels import emulator
from tpu_kernels.emulator import CapturedProgram
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
        captured = programs_of(programs, lambda: compiled(*arguments))
    if len(captured) != 1:
        raise CompileError(
            explain(
                f"{case.function} is not one program on a TPU.",
                needs="a function of tensors that torch.compile takes whole",
                got=", ".join(program.name for program in captured) or "none",
            )
        )
    return Program(case.name, captured[0].stablehlo, captured[0].compile_options, captured[0].name)


def programs_of(programs: list[CapturedProgram], call: Any) -> list[CapturedProgram]:
    """The programs that `call()` adds to the list of an open capture, without those that only reserve memory."""
    torch.accelerator.synchronize()
    known = len(programs)
    call()
    torch.accelerator.synchronize()
    return [program for program in programs[known:] if program.name != "tt_jit_empty"]


def _tensor(argument: Argument) -> torch.Tensor | None:
    if argument is None:
        return None
    shape, dtype = argument
    return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="tpu")

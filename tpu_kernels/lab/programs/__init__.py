"""Programs as a TPU gets them: captured on the emulated TPU, compiled by libtpu ahead of time, no TPU needed.

    programs = capture_model(ModelCase("path/to/config.json", flow="plain", steps=("decode",)))
    (decode,) = compile_programs(programs, "v6e")
    decode.error, decode.memory, decode.hlo

Capture and compiler run in processes of their own, so any process may call these functions.
"""

from tpu_kernels.lab.memory import Memory
from tpu_kernels.lab.programs.capturing import capture_each, capture_functions, capture_model
from tpu_kernels.lab.programs.compiling import CompiledProgram, compile_programs
from tpu_kernels.lab.programs.program import Program, load_programs, save_programs
from tpu_kernels.lab.programs.requests import (
    FLOWS,
    STEPS,
    FunctionCase,
    ModelCase,
    baseline_cases,
    reference_cases,
)

__all__ = [
    "FLOWS",
    "STEPS",
    "CompiledProgram",
    "FunctionCase",
    "Memory",
    "ModelCase",
    "Program",
    "baseline_cases",
    "capture_each",
    "capture_functions",
    "capture_model",
    "compile_programs",
    "load_programs",
    "reference_cases",
    "save_programs",
]

"""What a capture keeps, and the empty program that stands in for one that is only captured."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tpu_kernels.emulator.programs import readable, written


@dataclass(frozen=True)
class CapturedProgram:
    """One program that torch_tpu asked PJRT to compile."""

    name: str
    """Name of its module, as torch_tpu chose it: `tt_jit_` and what it computes."""
    stablehlo: bytes
    """The StableHLO portable artifact, as torch_tpu wrote it for a TPU."""
    compile_options: bytes
    """The serialized CompileOptionsProto that came with it."""


class CapturedPrograms(list[CapturedProgram]):
    """Programs in the order in which they were compiled.

    `runs` holds the index of a program for each time that one would have run, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []
        self._lock = threading.Lock()

    def keep(self, program: CapturedProgram) -> int:
        """Append `program` and return its index; torch_tpu compiles from threads of its own."""
        with self._lock:
            self.append(program)
            return len(self) - 1


@dataclass
class Recorder:
    """What was captured so far; `run` tells whether programs run as well."""

    run: bool
    programs: CapturedPrograms = field(default_factory=CapturedPrograms)


def record(recorder: Recorder, program: bytes, options: bytes) -> tuple[int, bytes]:
    """Keep `program`; return its number in the record and a portable artifact of the same signature that yields zeros.

    Raises RuntimeError if the program cannot be read.
    """
    from jaxlib.mlir import ir

    with readable(program) as module:
        name = ir.StringAttr(module.operation.attributes["sym_name"]).value
        number = recorder.programs.keep(CapturedProgram(name, program, options))
        if recorder.run:
            return number, program
        _empty(module)
        return number, written(module)


def _empty(module: Any) -> None:
    """Make the body of `main` in `module` a return of zeros, and drop every other function."""
    from jaxlib.mlir import ir

    for operation in list(module.body.operations):
        function = operation.operation
        if function.name != "func.func":
            continue
        if ir.StringAttr(function.attributes["sym_name"]).value != "main":
            function.erase()
            continue
        block = function.regions[0].blocks[0]
        types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
        for inner in reversed(list(block.operations)):
            inner.operation.erase()
        with ir.InsertionPoint(block):
            ir.Operation.create("func.return", operands=[_zeros(result) for result in types])


def _zeros(result: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    tensor = ir.RankedTensorType(result)
    element = tensor.element_type
    if isinstance(element, ir.ComplexType):
        part = _zeros(ir.RankedTensorType.get(tensor.shape, element.element_type))
        return stablehlo.complex(part, part)
    integer = isinstance(element, ir.IntegerType)
    zero: Any = ir.IntegerAttr.get(element, 0) if integer else ir.FloatAttr.get(element, 0.0)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(tensor, zero))

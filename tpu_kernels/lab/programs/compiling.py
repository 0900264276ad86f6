"""Compiles captured programs with libtpu ahead of time, and says what came of each."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.lab.memory import Memory
from tpu_kernels.lab.messages import one_line
from tpu_kernels.lab.processes import Answer, compile_answers, compiler_environment, dumping_environment
from tpu_kernels.lab.programs.program import Program, save_programs
from tpu_kernels.lab.targets import Target, target_of

_WORKER: Final = "tpu_kernels.lab.programs.compile_worker"


@dataclass(frozen=True)
class CompiledProgram:
    """What libtpu made of a program."""

    program: Program
    target: Target
    error: str | None
    """None if it compiled, else the compiler's reason in one line."""
    seconds: float
    memory: Memory | None = None
    """None if it did not compile."""
    hlo: str = field(default="", repr=False)
    """The optimised HLO module as text, "" if it did not compile."""
    dump: Path | None = None
    """Folder of the compiler's dumps, if they were asked for."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def free_bytes(self) -> int | None:
        """Bytes of the chip's usable memory that the program leaves, negative if it does not fit."""
        return None if self.memory is None else self.target.chip.usable_hbm_bytes - self.memory.total


def compile_programs(
    programs: Sequence[Program], target: str, *, dump_to: Path | None = None, timeout: float = 1800.0
) -> list[CompiledProgram]:
    """Compile `programs` one after the other for `target`, a generation ("v5e") or a topology ("v5e:1x1").

    The compiler runs in a new process. A program that it refuses is a result with an `error`, and so is one on which
    it dies; the rest is then compiled in another process. With `dump_to` each program has a process to itself, and
    the schedules of its kernels and fusions are written into the folder `dump_to`/`program.file_name`.

    Raises:
        ValueError: unknown generation, malformed topology, two programs of one name.
        CompileError: the compiler could not be started for that topology, died again and again, or took more than
            `timeout` seconds.
    """
    aim = target_of(target)
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-compile-") as folder:
        work = save_programs(programs, Path(folder))
        requests = [_request(work, program) for program in programs]
        if dump_to is None:
            answers = _answers(aim, requests, timeout, compiler_environment())
        else:
            answers = []
            for program, request in zip(programs, requests, strict=True):
                folder_of_its_own = dump_to / program.file_name
                folder_of_its_own.mkdir(parents=True, exist_ok=True)
                answers += _answers(aim, [request], timeout, dumping_environment(folder_of_its_own))
        return [
            _result(program, aim, answer, Path(request["hlo"]), dump_to)
            for program, request, answer in zip(programs, requests, answers, strict=True)
        ]


def _request(folder: Path, program: Program) -> dict[str, str]:
    return {kind: str(folder / f"{program.file_name}.{kind}") for kind in ("stablehlo", "options", "hlo")}


def _answers(target: Target, requests: list[dict[str, str]], timeout: float, environment: dict[str, str]) -> list[Any]:
    return compile_answers(
        _WORKER, target.topology, requests, timeout=timeout, what="programs", environment=environment
    )


def _result(program: Program, target: Target, answer: Answer, hlo: Path, dump_to: Path | None) -> CompiledProgram:
    dump = None if dump_to is None else dump_to / program.file_name
    if answer["error"] is not None:
        return CompiledProgram(program, target, one_line(answer["error"]), answer["seconds"], dump=dump)
    memory = Memory(**answer["memory"])
    return CompiledProgram(program, target, None, answer["seconds"], memory, hlo.read_text(), dump)

"""Compiles kernels with libtpu ahead of time: no TPU is needed, and what it refuses here it refuses there.

    python -m tpu_kernels.lab.aot                        # cases that differ in kind, of every bundled kernel
    python -m tpu_kernels.lab.aot --all                  # every named case
    python -m tpu_kernels.lab.aot --op attention --case CASE --generation v5e --dtype bfloat16

The compiler runs in a process of its own, one per generation: libtpu and the emulator never share a process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.chips import CHIPS
from tpu_kernels.lab.memory import Memory
from tpu_kernels.lab.messages import one_line
from tpu_kernels.lab.processes import Answer, compile_answers
from tpu_kernels.lab.targets import GENERATIONS, target_of
from tpu_kernels.ops.case import Argument, OpCase
from tpu_kernels.ops.catalog import OPS

DTYPES: Final = ("float32", "bfloat16")
"""What the kernels of all ops are compiled for."""

_WORKER: Final = "tpu_kernels.lab.aot_worker"


@dataclass(frozen=True)
class AotJob:
    """One function of a kernel's JAX file, to be compiled for arguments of given shapes."""

    name: str
    kernel: Path
    function: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def request(self, **more: Any) -> dict[str, Any]:
        """What a worker process is told of it."""
        return {
            "kernel": str(self.kernel),
            "function": self.function,
            "arguments": self.arguments,
            "keywords": self.keywords,
            **more,
        }


@dataclass(frozen=True)
class AotResult:
    """What libtpu made of a job."""

    job: AotJob
    generation: str
    error: str | None
    """None if it compiled, else the compiler's reason in one line."""
    seconds: float
    moved_bytes: int = 0
    """Bytes written by what XLA runs around the kernels: copies, pads, changes of layout."""
    memory: Memory | None = None
    """None if it did not compile."""
    vmem_bytes: int | None = None
    """Most VMEM that a kernel of the job uses, None if the compiler does not say."""

    @property
    def ok(self) -> bool:
        return self.error is None


def op_jobs(cases: Iterable[OpCase], dtypes: Sequence[str] = DTYPES, *, kernel: Path, **tuning: Any) -> list[AotJob]:
    """A job for each case and dtype, of the case's function in the JAX file `kernel`; `tuning` are more keywords."""
    return [
        AotJob(
            name=f"{case.name} {dtype}",
            kernel=kernel,
            function=case.function,
            arguments=case.arguments(dtype),
            keywords={**case.keywords, **tuning},
        )
        for case in cases
        for dtype in dtypes
    ]


def compile_jobs(jobs: Sequence[AotJob], generation: str, *, timeout: float = 900.0) -> list[AotResult]:
    """Compiles `jobs` one after the other for `generation` (or a topology, "v6e:1x1"), in one new process.

    A job that the compiler refuses is a result with an `error`, and so is one that kills the process; the rest is
    then compiled in another process.

    Raises:
        ValueError: unknown generation.
        CompileError: the compiler could not be started, died again and again, or took more than `timeout` seconds.
    """
    requests = [job.request() for job in jobs]
    topology = target_of(generation).topology
    answers = compile_answers(_WORKER, topology, requests, timeout=timeout, what="kernels")
    return [_result(job, generation, answer) for job, answer in zip(jobs, answers, strict=True)]


def _result(job: AotJob, generation: str, answer: Answer) -> AotResult:
    error = answer["error"]
    return AotResult(
        job,
        generation,
        None if error is None else one_line(error),
        answer["seconds"],
        answer.get("moved_bytes", 0),
        Memory(**answer["memory"]) if answer.get("memory") else None,
        answer.get("vmem_bytes"),
    )


def main(argv: list[str] | None = None) -> int:
    from tpu_kernels.lab.cost.subject import kernel_source
    from tpu_kernels.lab.kernel_cases import bundled_kernels, cases_of_each

    parser = argparse.ArgumentParser(
        prog="python -m tpu_kernels.lab.aot", description="Compile the bundled kernels with libtpu."
    )
    parser.add_argument("--op", action="append", choices=list(OPS), help="default: all")
    parser.add_argument("--all", action="store_true", help="every named case")
    parser.add_argument("--case", action="append", default=[], help="a case by name, or all of a model's cases")
    parser.add_argument("--generation", action="append", choices=list(CHIPS), help="default: v5e, v6e, tpu7x")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: both")
    parser.add_argument("--tuning", action="append", default=[], metavar="NAME=NUMBER", help="keyword of the kernel")
    options = parser.parse_args(argv)
    try:
        tuning = {name: int(value) for name, _, value in (one.partition("=") for one in options.tuning)}
        chosen = cases_of_each(bundled_kernels(options.op), options.case, "all" if options.all else "differing")
    except ValueError as error:
        parser.error(str(error))
    failed = 0
    for spec, cases in chosen:
        for generation in options.generation or GENERATIONS:
            keywords = {**spec.tuning(generation), **tuning}
            jobs = op_jobs(cases, options.dtype or DTYPES, kernel=kernel_source(spec), **keywords)
            for result in compile_jobs(jobs, generation):
                failed += not result.ok
                name = f"{spec.name:<28} {result.job.name:<40}"
                print(f"{generation:<6} {name} {result.seconds:5.1f} s  {result.error or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

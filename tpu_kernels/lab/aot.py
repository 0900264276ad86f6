"""Compiles kernels with libtpu ahead of time: no TPU is needed, and what it refuses here it refuses there.

    python -m tpu_kernels.lab.aot                        # one case of each kind for v5e, v6e and tpu7x
    python -m tpu_kernels.lab.aot --all                  # every named case, both dtypes
    python -m tpu_kernels.lab.aot --case gpt-oss-20b/decode --generation v5e --dtype bfloat16

The compiler runs in a process of its own, one per generation: libtpu and the emulator never share a process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.chips import CHIPS, chip
from tpu_kernels.errors import CompileError, explain
from tpu_kernels.lab.jax_source import STATIC_ATTENTION
from tpu_kernels.ops.attention.cases import CASES, AttentionCase
from tpu_kernels.ops.attention.contract import DTYPES

GENERATIONS: Final = ("v5e", "v6e", "tpu7x")
"""The generations that the bundled kernels are compiled for."""

REPRESENTATIVES: Final = ("qwen3-0.6b", "gpt-oss-20b", "gemma-2-9b", "phi-3-mini", "falcon-7b", "deepseek-v2-lite")
"""Models whose cases differ in kind: head sizes of 128, 64, 256, 96 and 192, groups of 2, 8, 1 and 71."""

MAX_DEATHS: Final = 3
"""Compiler processes that may die before `compile_jobs` gives up."""

Argument = tuple[tuple[int, ...], str] | None
"""Shape and dtype of an array, or None for an argument that is left out."""


@dataclass(frozen=True)
class AotJob:
    """One function of a kernel's JAX file, to be compiled for arguments of given shapes."""

    name: str
    kernel: Path
    function: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Any] = field(default_factory=dict)


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

    @property
    def ok(self) -> bool:
        return self.error is None


def attention_jobs(
    cases: Iterable[AttentionCase] = CASES,
    dtypes: Sequence[str] = DTYPES,
    kernel: Path = STATIC_ATTENTION,
    **tuning: Any,
) -> list[AotJob]:
    """A job for each case and dtype, of the function `attend` in the file `kernel`."""
    return [
        AotJob(
            name=f"{case.name} {dtype}",
            kernel=kernel,
            function="attend",
            arguments=(
                (case.shape.query_shape, dtype),
                (case.shape.key_shape, dtype),
                (case.shape.value_shape, dtype),
                (case.shape.bounds_shape, "int32"),
                ((case.shape.query_heads,), dtype) if case.sinks else None,
            ),
            keywords={"scale": case.scale, "softcap": case.softcap, **tuning},
        )
        for case in cases
        for dtype in dtypes
    ]


def compile_jobs(jobs: Sequence[AotJob], generation: str, *, timeout: float = 900.0) -> list[AotResult]:
    """Compiles `jobs` one after the other for `generation`, in one new process.

    A job that the compiler refuses is a result with an `error`, and so is one that kills the process; the rest is
    then compiled in another process.

    Raises:
        ValueError: unknown generation.
        CompileError: the compiler could not be started, died again and again, or took more than `timeout` seconds.
    """
    topology = chip(generation).topology
    results: list[AotResult] = []
    deaths = 0
    while len(results) < len(jobs):
        remaining = jobs[len(results) :]
        answers, log = _run_worker(remaining, topology, timeout)
        results += [_result(job, generation, answer) for job, answer in zip(remaining, answers, strict=False)]
        if len(answers) < len(remaining):
            deaths += 1
            if deaths > MAX_DEATHS:
                raise CompileError(
                    explain(
                        f"libtpu died on {deaths} of {len(results) + 1} kernels compiled for {generation}.",
                        got=_last_line(log),
                        next_step="run one of them with `python -m tpu_kernels.lab.aot --case NAME`",
                    )
                )
            died = {"error": f"the compiler died: {_last_line(log)}", "seconds": 0.0}
            results.append(_result(remaining[len(answers)], generation, died))
    return results


def one_line(message: str, width: int = 240) -> str:
    """The telling part of a compiler's message, as one line of at most `width` characters."""
    text = re.sub(r"\s+", " ", message.split("\n\n")[0].split("\nSee https")[0]).strip()
    text = re.sub(r"^JaxRuntimeError: (INVALID_ARGUMENT|RESOURCE_EXHAUSTED|INTERNAL|UNIMPLEMENTED): ", "", text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _result(job: AotJob, generation: str, answer: dict[str, Any]) -> AotResult:
    error = answer["error"]
    return AotResult(
        job,
        generation,
        None if error is None else one_line(error),
        answer["seconds"],
        answer.get("moved_bytes", 0),
    )


def _run_worker(jobs: Sequence[AotJob], topology: str, timeout: float) -> tuple[list[dict[str, Any]], str]:
    requests = [
        {
            "kernel": str(job.kernel),
            "function": job.function,
            "arguments": job.arguments,
            "keywords": job.keywords,
        }
        for job in jobs
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tpu_kernels.lab.aot_worker", topology],
            input="".join(json.dumps(request) + "\n" for request in requests),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            explain(
                f"Compiling for {topology} took more than {timeout:.0f} s.",
                next_step="compile fewer cases at once, or raise the timeout",
            )
        ) from error
    lines = done.stdout.splitlines()
    if not lines:
        raise CompileError(
            explain(
                f"libtpu could not be started to compile for {topology}.",
                needs="the packages jax and libtpu",
                got=_last_line(done.stderr),
                next_step="pip install 'tpu-kernels[tpu]'",
            )
        )
    return [json.loads(line) for line in lines[1:]], done.stderr


def _environment() -> dict[str, str]:
    """That of this process without the emulator's settings, and with what keeps libtpu quiet and shareable."""
    environment = {key: value for key, value in os.environ.items() if key not in ("TPU_LIBRARY_PATH", "WORLD_SIZE")}
    environment.update(
        JAX_PLATFORMS="cpu",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        PYTHONPATH=os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )
    return environment


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tpu_kernels.lab.aot", description="Compile the bundled attention kernel with libtpu."
    )
    parser.add_argument("--all", action="store_true", help="every named case")
    parser.add_argument("--case", action="append", default=[], help="a case by name, or all of a model's cases")
    parser.add_argument("--generation", action="append", choices=list(CHIPS), help="default: v5e, v6e, tpu7x")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: both")
    parser.add_argument("--block-k", type=int, help="key positions of a block")
    options = parser.parse_args(argv)
    wanted = options.case or (None if options.all else list(REPRESENTATIVES))
    cases = [case for case in CASES if wanted is None or {case.name, case.name.split("/")[0]} & set(wanted)]
    if not cases:
        parser.error(f"no case is called {', '.join(options.case)}; there are {', '.join(c.name for c in CASES)}")
    tuning = {} if options.block_k is None else {"block_k": options.block_k}
    failed = 0
    for generation in options.generation or GENERATIONS:
        for result in compile_jobs(attention_jobs(cases, options.dtype or DTYPES, **tuning), generation):
            failed += not result.ok
            print(f"{generation:<6} {result.job.name:<34} {result.seconds:5.1f} s  {result.error or 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Processes of their own for libtpu's compiler and for the emulator, which never share one.

A worker reads one JSON request a line on standard input and writes one JSON answer a line on standard output, in the
same order; the first line that it writes says that it has started. Where it dies on a request, that is the request's
answer, and another worker goes on with the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tpu_kernels.errors import CompileError, explain

MAX_DEATHS: Final = 3
"""Compiler processes that may die before the rest is given up."""

_ROOT: Final = Path(__file__).parents[2]
_OF_THE_EMULATOR: Final = ("TPU_LIBRARY_PATH", "WORLD_SIZE", "TORCHINDUCTOR_CACHE_DIR")

Answer = dict[str, Any]


def child_environment(**variables: str) -> dict[str, str]:
    """That of this process without the emulator's settings, able to import this package, and `variables`."""
    environment = {key: value for key, value in os.environ.items() if key not in _OF_THE_EMULATOR}
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**environment, "PYTHONPATH": path, **variables}


def compiler_environment(**variables: str) -> dict[str, str]:
    """`child_environment` with what keeps libtpu quiet and shareable."""
    return child_environment(
        JAX_PLATFORMS="cpu",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        **variables,
    )


def dumping_environment(folder: Path) -> dict[str, str]:
    """`compiler_environment` in which libtpu writes the schedule and the utilization of each kernel and fusion to
    `folder`, which must exist, and little else."""
    environment = compiler_environment()
    flags = (
        environment.get("LIBTPU_INIT_ARGS", ""),
        f"--xla_jf_dump_to={folder.resolve()}",
        "--xla_jf_dump_llo_text=true",
        "--xla_jf_dump_llo_pass_label_regex=(packed-bundles-post-ra|pre-delay_hlo)",
    )
    return {**environment, "LIBTPU_INIT_ARGS": " ".join(filter(None, flags))}


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def compile_answers(
    module: str,
    topology: str,
    requests: Sequence[Mapping[str, Any]],
    *,
    timeout: float,
    what: str,
    environment: Mapping[str, str] | None = None,
) -> list[Answer]:
    """The answers of `python -m MODULE TOPOLOGY` to `requests`, each with `error` (None, or a message) and `seconds`.

    what     what is compiled, in the plural, for messages: "kernels"
    timeout  seconds for one process
    Raises CompileError where the process could not be started, died again and again, or took too long.
    """
    answers: list[Answer] = []
    deaths = 0
    while len(answers) < len(requests):
        remaining = requests[len(answers) :]
        given, log = _run_worker(module, topology, remaining, timeout, environment or compiler_environment())
        answers += given
        if len(given) < len(remaining):
            deaths += 1
            if deaths > MAX_DEATHS:
                raise CompileError(
                    explain(
                        f"libtpu died on {deaths} of {len(answers) + 1} {what} compiled for {topology}.",
                        got=last_line(log),
                        next_step="compile one of them alone to see which one it dies on",
                    )
                )
            answers.append({"error": f"the compiler died: {last_line(log)}", "seconds": 0.0})
    return answers


def _run_worker(
    module: str, topology: str, requests: Sequence[Mapping[str, Any]], timeout: float, environment: Mapping[str, str]
) -> tuple[list[Answer], str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, topology],
            input="".join(json.dumps(request) + "\n" for request in requests),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            explain(
                f"Compiling for {topology} took more than {timeout:.0f} s.",
                next_step="compile less at once, or raise the timeout",
            )
        ) from error
    lines = done.stdout.splitlines()
    if not lines:
        raise CompileError(
            explain(
                f"libtpu could not be started to compile for {topology}.",
                needs="the packages jax, libtpu and pypjrt, and a topology that libtpu knows",
                got=last_line(done.stderr),
                next_step="pip install 'tpu-kernels[emulator]'",
            )
        )
    return [json.loads(line) for line in lines[1:]], done.stderr

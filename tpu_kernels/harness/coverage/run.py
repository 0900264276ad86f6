"""Many architectures in child processes, since one may take its process down with it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, get_args

from tpu_kernels.harness.coverage.architectures import load_architectures
from tpu_kernels.harness.coverage.row import Row
from tpu_kernels.lab.programs.requests import Flow
from tpu_kernels.specs.vocabulary import POLICIES, Policy

PER_PROCESS = 8
TIMEOUT_PER_ARCHITECTURE = 300.0
"""Seconds."""


def run_all(
    names: Sequence[str],
    *,
    file: Path | None = None,
    flow: Flow = "tpu-kernels",
    specs: Sequence[str] = (),
    policies: Sequence[Policy] = POLICIES,
    processes: int = 1,
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The row of each of `names`, in order. A child that dies is the row of the architecture that it was at.

    `file` lists the architectures (see `load_architectures`), `specs` are kernel specs to prefer; `progress` is told
    each row as its process ends.
    """
    parts = [names[start : start + PER_PROCESS] for start in range(0, len(names), PER_PROCESS)]

    def run(part: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < len(part):
            done = _in_a_child(part[len(rows) :], file, flow, specs, policies)
            for row in done:
                progress(row)
            rows += done
        return rows

    with ThreadPoolExecutor(processes) as pool:
        return [row for rows in pool.map(run, parts) for row in rows]


def _in_a_child(
    names: Sequence[str], file: Path | None, flow: Flow, specs: Sequence[str], policies: Sequence[Policy]
) -> list[Row]:
    """Rows of the first of `names`, at least of one: up to the end, or to where the child died."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "rows"), Path(folder, "log")
        command = [sys.executable, "-m", "tpu_kernels.harness.coverage.run", "--flow", flow, "--out", str(out), *names]
        command[3:3] = [option for spec in specs for option in ("--spec", spec)]
        command[3:3] = [option for policy in policies for option in ("--policy", policy)]
        if file is not None:
            command[3:3] = ["--architectures", str(file)]
        timeout = TIMEOUT_PER_ARCHITECTURE * len(names)
        with log.open("wb") as stream:
            code = _run(command, stream, timeout)
        lines = out.read_text().splitlines() if out.exists() else []
        rows = [Row.model_validate_json(line) for line in lines]
        if len(rows) < len(names):
            rows.append(Row(name=names[len(rows)], error=f"the process died ({code}): {_last_words(log)}"))
        return rows


def _run(command: list[str], log: BinaryIO, timeout: float) -> int | str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=timeout, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"no answer in {timeout:.0f} s"


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return " ".join([line for line in lines if line.startswith(("F0", "Fatal"))] or lines[-3:])[:600]


def main() -> None:
    """The child: one row a line into a file."""
    from tpu_kernels import emulator

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--architectures", type=Path)
    parser.add_argument("--flow", choices=get_args(Flow), required=True)
    parser.add_argument("--spec", action="append", default=[])
    parser.add_argument("--policy", action="append", choices=POLICIES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    emulator.start()  # before torch is imported

    from tpu_kernels.harness.coverage.check import check

    architectures = load_architectures(options.architectures)
    for name in options.names:
        try:
            row = check(name, architectures[name], options.flow, options.spec, options.policy)
        except Exception as error:
            row = Row(name=name, error=f"{type(error).__name__}: {error}"[:600])
        with options.out.open("a") as stream:
            stream.write(row.model_dump_json() + "\n")


if __name__ == "__main__":
    main()

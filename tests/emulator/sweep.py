"""Plain static-cache generation of many architectures in the emulator: `python -m tests.emulator.sweep`.

An architecture may take its process down with it, so they run in child processes, a few at a time; a
child that dies is a result of the architecture that it was at, and another carries on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.emulator.architectures import check, right_on_a_cpu

ROOT = Path(__file__).parent.parent.parent
# docs/known-faults.md says why.
HELD_BACK = ("phimoe",)

PER_PROCESS = 16
TIMEOUT_PER_ARCHITECTURE = 240


def sweep(names: list[str]) -> list[dict[str, Any]]:
    """The result of `check` for each of `names`, or `{"name", "error"}`."""
    results: list[dict[str, Any]] = []
    waiting = list(names)
    while waiting:
        done = _in_a_child(waiting[:PER_PROCESS])
        for result in done:
            print("ok  " if right(result) else "FAIL", json.dumps(result), flush=True)
        results += done
        waiting = waiting[len(done) :]
    return results


def right(result: dict[str, Any]) -> bool:
    """True if the emulator gave the reference's tokens, and its logits within 1e-3."""
    return bool(result.get("equal")) and result["logits"] < 1e-3


def _in_a_child(names: list[str]) -> list[dict[str, Any]]:
    """Results of the first of `names`, at least of one: up to the end, or to where the child died."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "results"), Path(folder, "log")
        command = [sys.executable, "-m", "tests.emulator.sweep", "--child", "--json", str(out), *names]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as stream:
            try:
                code: int | str = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT_PER_ARCHITECTURE * len(names),
                ).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
        results = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        if len(results) < len(names):
            lines = log.read_text(errors="replace").splitlines()
            fatal = [line for line in lines if line.startswith(("F0", "Fatal"))] or lines[-3:]
            text = f"the process died ({code}): {' '.join(fatal)[:600]}"
            results.append({"name": names[len(results)], "error": text})
        return results


def _child(names: list[str], out: Path) -> None:
    from tpu_kernels import emulator

    emulator.start()

    for name in names:
        try:
            result = check(name)
        except Exception as error:
            result = {"name": name, "error": f"{type(error).__name__}: {error}"[:600]}
        with out.open("a") as stream:
            stream.write(json.dumps(result) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="default: all that a CPU gets right")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every Nth architecture, from the Ith")
    parser.add_argument("--json", type=Path, help="write the results here, one object a line")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    names = (options.names or right_on_a_cpu())[index::count]
    if options.child:
        _child(names, options.json)
        return 0
    results = sweep(names)
    if options.json:
        options.json.write_text("".join(json.dumps(result) + "\n" for result in results))
    wrong = [result["name"] for result in results if not right(result)]
    print(f"{len(results) - len(wrong)} of {len(results)} give the reference's tokens; not: {wrong}")
    return 0 if set(wrong) <= set(HELD_BACK) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Launches in processes of their own, on a machine whose TPU is taken for granted: the ranks here use none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.emulator.processes import ROOT

# torch is loaded once for several launches; each says on both streams where it ends.
_SEVERAL = """
import json, sys
from tpu_kernels.launch import environment, launcher
environment.set_launch_environment = lambda *_: None
for arguments in json.loads(sys.argv[1]):
    code = launcher.run_launch(arguments)
    for stream in (sys.stdout, sys.stderr):
        print(f"=== {code}", file=stream, flush=True)
"""


@dataclass(frozen=True)
class Launch:
    """What one launch answered."""

    code: int
    stdout: str
    stderr: str


def several(*launches: list[str], **variables: str) -> list[Launch]:
    """Run one launch after the other, each with the arguments of `tpu-kernels launch`."""
    process = start(*launches, **variables)
    stdout, stderr = process.communicate(timeout=180)
    answers = list(zip(_split(stdout), _split(stderr), strict=True))
    assert len(answers) == len(launches), stderr
    return [Launch(code, out, err) for (code, out), (_, err) in answers]


def start(*launches: list[str], **variables: str) -> subprocess.Popen[str]:
    """The process of `several`, running."""
    return subprocess.Popen(
        [sys.executable, "-c", _SEVERAL, json.dumps(launches)],
        cwd=ROOT,
        # without torch_tpu, which these ranks do not need
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _split(text: str) -> list[tuple[int, str]]:
    *parts, _ = text.split("=== ")
    ends = [int(part.split("\n", 1)[0]) for part in text.split("=== ")[1:]]
    starts = [parts[0], *(part.split("\n", 1)[1] for part in parts[1:])] if parts else []
    return list(zip(ends, starts, strict=True))


def is_running(pid: int) -> bool:
    """False too for a process that ended and that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def script(folder: Path, text: str, name: str = "script.py") -> str:
    """Path of a Python file with this text."""
    path = folder / name
    path.write_text(text)
    return str(path)

"""The README's ten lines are `examples/generate.py`, and what it says they print is what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/generate.py"


def _blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def _lines(printed: str) -> list[str]:
    """Without trailing spaces, and without the digest of the kernel, which any edit of the kernel changes."""
    return [re.sub(r"sha256:\w+", "sha256:...", line.rstrip()) for line in printed.strip().splitlines()]


def test_the_ten_lines_are_the_example() -> None:
    (code,) = _blocks("python")
    assert EXAMPLE.read_text(encoding="utf-8").endswith(f"\n{code}")
    assert len([line for line in code.splitlines() if line]) <= 11


def test_the_example_prints_what_the_readme_says() -> None:
    command = [sys.executable, "-m", "tpu_kernels.emulator", str(EXAMPLE)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    promised = [block for block in _blocks("") if "layers swapped" in block]
    assert [_lines(block) for block in promised] == [_lines(run.stdout)]


def test_the_commands_are_those_of_the_command_line() -> None:
    import typer.main

    from tpu_kernels.cli.main import app

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `tpu-kernels (\w+)", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]

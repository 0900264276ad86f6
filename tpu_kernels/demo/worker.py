"""The demonstration, a script: `python -m tpu_kernels.emulator worker.py`, or `python worker.py` on a TPU."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tpu_kernels import emulator
from tpu_kernels.demo.assets import demo_model_path
from tpu_kernels.demo.findings import Findings
from tpu_kernels.demo.prompts import PROMPTS
from tpu_kernels.demo.show import show
from tpu_kernels.errors import TpuKernelsError

COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)


def measure_with_progress(model_path: str, new_tokens: int, console: Console) -> Findings:
    """`measure` on the bundled prompts, under a progress bar."""
    device = "the emulated TPU (torch_tpu on XLA's CPU plugin)" if emulator.is_active() else "the TPU"
    console.print(f"tpu-kernels demo on {device}", highlight=False)
    with Progress(*COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("importing torch and transformers", total=None)
        from transformers.utils import logging

        from tpu_kernels.demo.measure import measure, stages

        logging.disable_progress_bar()  # this process has one of its own
        begun = itertools.count()
        progress.update(task, total=stages(PROMPTS))
        return measure(
            model_path,
            PROMPTS,
            new_tokens=new_tokens,
            say=lambda line: console.print(line, highlight=False),
            stage=lambda name: progress.update(task, completed=next(begun), description=name),
        )


def main(arguments: Sequence[str]) -> int:
    """Run, print, and return 0 if the findings are what tpu-kernels promises, else 1."""
    parser = argparse.ArgumentParser(prog="tpu-kernels demo")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--model", default=None)
    options = parser.parse_args(arguments)
    console = Console()
    try:
        model_path = options.model or str(demo_model_path())
        findings = measure_with_progress(model_path, options.new_tokens, console)
    except TpuKernelsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    show(findings, console)
    return 0 if findings.hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

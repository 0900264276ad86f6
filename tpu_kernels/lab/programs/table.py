"""The lines of `tpu-kernels compile` on the terminal, each as it is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from tpu_kernels.lab.programs.lines import CompileLine

_STYLES: Final = {"ok": "green", "failed": "bold red", "not covered": "yellow", "too large": "bold red"}
_HEAD: Final = ("TPU", "case", "result", "VMEM", "argument", "output", "alias", "temp", "left")
_WIDTHS: Final = (13, 34, 11, 9, 9, 9, 9, 9, 10)


def size(value: int | None) -> str:
    """Bytes as a short text: "6.0 MiB"."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit in ("B", "KiB") else f"{amount:.2f} {unit}"


def show_lines(lines: Iterable[CompileLine], console: Console) -> list[CompileLine]:
    """Print each line when it comes, then the sum. Returns the lines."""
    shown: list[CompileLine] = []
    for line in lines:
        if not shown:
            console.print(Text(_row(_HEAD), style="bold"), soft_wrap=True)
        shown.append(line)
        console.print(_text(line), soft_wrap=True)
    failed = sum(line.failed for line in shown)
    console.print(f"{failed} of {len(shown)} failed." if failed else f"All {len(shown)} done.")
    return shown


def _text(line: CompileLine) -> Text:
    result = "too large" if line.status == "ok" and line.fits is False else line.status
    name = line.case if line.flow is None else f"{line.flow} {line.case}"
    memory = line.memory
    numbers = () if memory is None else (memory.argument, memory.output, memory.alias, memory.temp, line.free)
    cells = (line.target.topology, name, result, *map(size, (line.vmem, *numbers) if numbers else ()))
    row = _row(cells).rstrip()
    start = row.index(result, _WIDTHS[0])
    text = Text(row)
    text.stylize(_STYLES[result], start, start + len(result))
    tail = line.message or (f"{size(-(line.free or 0))} too much" if result == "too large" else line.note)
    return text.append(f"  {tail}" if tail else "")


def _row(cells: Iterable[str]) -> str:
    texts = list(cells)
    left = [f"{text:<{width}}" for text, width in zip(texts[:3], _WIDTHS[:3], strict=False)]
    right = [f"{text:>{width + 1}}" for text, width in zip(texts[3:], _WIDTHS[3:], strict=False)]
    return " ".join(left + right)

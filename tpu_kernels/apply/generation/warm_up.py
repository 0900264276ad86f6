"""Compiling ahead of use: one short generate per batch size and cache length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from tpu_kernels.apply.session import Session


@dataclass(frozen=True)
class WarmUpStep:
    """What one (batch size, length) took: wall seconds in all, and the graphs that were compiled for it with the
    seconds of each. Where another length shares the cache length, there is nothing left to compile."""

    batch_size: int
    max_len: int
    seconds: float
    programs: dict[str, float]
    note: str = ""
    """Why there is nothing to compile ahead, where the calls run the plain way."""

    def __str__(self) -> str:
        compiled = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in self.programs.items())
        what = compiled or self.note or "compiled before"
        return f"batch {self.batch_size}, {self.max_len} tokens: {self.seconds:.1f} s ({what})"


def warm_up(
    session: Session, batch_sizes: Iterable[int], max_lens: Iterable[int], *, progress: bool
) -> tuple[WarmUpStep, ...]:
    """Compile prefill and decode for each batch size and each cache length that holds `max_lens` tokens."""
    pairs = [(batch, length) for length in sorted(set(max_lens)) for batch in sorted(set(batch_sizes))]
    for batch, length in pairs:
        if batch < 1 or length < 2:
            raise ValueError(f"warm_up needs batch sizes from 1 and lengths from 2, got {batch} and {length}")
    steps = []
    with _progress() if progress and session.ranks.is_first else nullcontext() as bar:
        task = bar.add_task("", total=len(pairs)) if bar is not None else None
        for batch, length in pairs:
            if bar is not None and task is not None:
                bar.update(task, description=f"compiling batch {batch}, {length} tokens")
            steps.append(_warm(session, batch, length))
            if bar is not None:
                bar.console.print(str(steps[-1]), highlight=False)
            if bar is not None and task is not None:
                bar.advance(task)
    return tuple(steps)


def _progress() -> Progress:
    """A bar on stderr whose clock runs on while a program is being compiled."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _warm(session: Session, batch: int, length: int) -> WarmUpStep:
    known, noted = [id(program) for program in session.log.programs], dict(session.notes)
    started = time.monotonic()
    generate: Callable[..., Any] = session.model.generate
    generate(
        torch.zeros((batch, 2), dtype=torch.int64),
        attention_mask=torch.ones((batch, 2), dtype=torch.int64),
        max_new_tokens=min(2, length - 1),
        min_new_tokens=min(2, length - 1),
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        cache_implementation="static",
        max_cache_len=length - 1,
    )
    seconds = time.monotonic() - started
    compiled = {program.name: program.compile_seconds for program in session.log.programs if id(program) not in known}
    new = [text for text, count in session.notes.items() if count != noted.get(text, 0)]
    return WarmUpStep(batch, length, seconds, compiled, "; ".join(new))

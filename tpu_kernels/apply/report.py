"""What enabling did to a model, and what its calls have run since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tpu_kernels.apply.generation.warm_up import WarmUpStep, warm_up
from tpu_kernels.errors import StackError
from tpu_kernels.plan.table import render_rows
from tpu_kernels.runtime.dispatch import Decision, Program

if TYPE_CHECKING:
    from tpu_kernels.apply.session import Session


@dataclass(frozen=True)
class ReportEntry:
    """One candidate layer. For a swapped one `kernel` is the spec's name, with what was loaded for it."""

    path: str
    op: str
    kernel: str | None
    reason: str
    repo: str | None = None
    revision: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class CallEntry:
    """What a layer ran in one phase: `chosen` is a kernel's name, or the fallback's, taken for `reason`.

    `left_to_xla` says that the kernel would be right but is not known to win such a call, which policy "auto" heeds.
    `steps` counts the forwards that went through it: every eager one, and every run of the graphs that `generate`
    compiled. A graph that somebody else traced shows 0.
    """

    path: str
    op: str
    phase: str
    chosen: str
    reason: str
    is_kernel: bool
    steps: int
    left_to_xla: bool = False


def _call_entry(decision: Decision, op: str, steps: int) -> CallEntry:
    return CallEntry(
        decision.path,
        op,
        decision.phase,
        decision.chosen,
        decision.reason,
        decision.is_kernel,
        steps,
        decision.left_to_xla,
    )


class EnableReport:
    """The report of `enable_tpu_kernels`. `print(report)` shows every layer; `undo()` puts the model back.

    As a context manager it undoes itself at the end of the block.
    """

    def __init__(self, session: Session | None, entries: tuple[ReportEntry, ...], note: str = "") -> None:
        self._session = session
        self.entries = entries
        self._note = note

    @property
    def swapped(self) -> tuple[ReportEntry, ...]:
        return tuple(entry for entry in self.entries if entry.kernel is not None)

    @property
    def kept(self) -> tuple[ReportEntry, ...]:
        return tuple(entry for entry in self.entries if entry.kernel is None)

    @property
    def calls(self) -> tuple[CallEntry, ...]:
        """What each layer has run so far, per phase, in layer order."""
        if self._session is None:
            return ()
        order = {entry.path: (position, entry.op) for position, entry in enumerate(self.entries)}
        steps = self._session.log.steps()
        calls = [_call_entry(decision, order[decision.path][1], count) for decision, count in steps.items()]
        return tuple(sorted(calls, key=lambda call: (order[call.path][0], call.phase, call.chosen)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not done as usual, and why: generate calls that ran the plain way, for example."""
        notes = [self._note] if self._note else []
        if self._session is not None:
            notes += [f"{text} ({count} x)" for text, count in self._session.notes.items()]
        return tuple(notes)

    @property
    def _programs(self) -> list[Program]:
        return self._session.log.programs if self._session is not None else []

    @property
    def programs(self) -> dict[str, int]:
        """Graphs that `generate` compiled, by name (phase, batch, tokens, cache length), and how often each ran."""
        runs: Counter[str] = Counter()
        for program in self._programs:
            runs[program.name] += program.runs
        return dict(runs)

    @property
    def programs_per_bucket(self) -> dict[tuple[int, int], int]:
        """How many graphs there are for each batch size (rows, beams included) and cache length."""
        return dict(Counter((program.batch, program.cache_length) for program in self._programs))

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Wall seconds that the first run of each graph took, by name."""
        return {program.name: program.compile_seconds for program in self._programs}

    def warm_up(
        self, batch_sizes: Iterable[int] = (1,), max_lens: Iterable[int] = (256,), *, progress: bool = True
    ) -> tuple[WarmUpStep, ...]:
        """Compile ahead what `generate` will run for these batch sizes and lengths (prompt and new tokens together).

        One entry is returned per pair, with its wall seconds and the graphs that were compiled; `progress` shows a bar
        on stderr. Raises StackError where the model is not enabled any more, and whatever `generate` raises.
        """
        if self._session is None or not self._session.enabled:
            raise StackError("warm_up needs an enabled model; this report's model is not enabled (any more).")
        return warm_up(self._session, batch_sizes, max_lens, progress=progress)

    @property
    def enabled(self) -> bool:
        return self._session is not None and self._session.enabled

    def undo(self) -> None:
        """Put the model back exactly as it was. Doing it twice does nothing."""
        if self._session is not None:
            self._session.undo()

    def __enter__(self) -> EnableReport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __deepcopy__(self, memo: dict[int, Any]) -> EnableReport:
        import copy

        return EnableReport(copy.deepcopy(self._session, memo), self.entries, self._note)

    def __str__(self) -> str:
        rows = [
            (entry.path, entry.op, entry.kernel or "kept", "" if entry.kernel else entry.reason)
            for entry in self.entries
        ]
        sources = dict.fromkeys(
            (entry.kernel, f"{entry.repo} {entry.revision} {entry.digest}") for entry in self.swapped
        )
        ops = Counter(entry.op for entry in self.swapped)
        title = f"tpu-kernels: {len(self.swapped)} of {len(self.entries)} layers swapped"
        title += f" ({', '.join(f'{op} {count}' for op, count in ops.items())})" if ops else ""
        parts = [render_rows(title, ("layer", "op", "kernel", "why not"), rows)]
        parts += [f"loaded: {kernel} from {source}" for kernel, source in sources]
        calls = [
            (call.path, call.phase, call.chosen, str(call.steps), call.reason or "covered")
            for call in self.calls
            if not call.left_to_xla
        ]
        if calls:
            parts.append(render_rows("calls", ("layer", "phase", "ran", "steps", "why"), calls))
        left = {(call.op, call.reason, call.path) for call in self.calls if call.left_to_xla}
        parts += [
            f"left to XLA: {count} {op} layers: {reason}"
            for (op, reason), count in sorted(Counter((op, reason) for op, reason, _ in left).items())
        ]
        parts += [
            f"programs: {count} for batch {batch}, cache {length}"
            for (batch, length), count in self.programs_per_bucket.items()
        ]
        parts += [f"note: {note}" for note in self.notes]
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<EnableReport: {len(self.swapped)} swapped, {len(self.kept)} kept, enabled={self.enabled}>"

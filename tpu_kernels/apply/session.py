"""The state of one enabled model."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedModel

from tpu_kernels.apply.journal import Journal
from tpu_kernels.apply.own_config import OwnConfigs
from tpu_kernels.apply.report import EnableReport, ReportEntry
from tpu_kernels.runtime.dispatch import CallLog, LayerDispatch
from tpu_kernels.runtime.ranks import Ranks, alone
from tpu_kernels.specs.vocabulary import Policy

SESSION_ATTRIBUTE = "_tpu_kernels_session"


@dataclass(frozen=True)
class Settings:
    """What the user asked of `enable_tpu_kernels`, as far as a running model needs it."""

    max_cache_len: int | None = None
    prefill_chunk: int | None = None
    on_reject: Literal["fallback", "error"] = "fallback"
    check: bool = False
    policy: Policy = "auto"


class SessionLock:
    """Held while `generate` runs: threads that generate with one model take turns. A deep copy gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionLock:
        return SessionLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@dataclass(eq=False)
class Session:
    """What belongs to one enabled model: its undo journal, its configs, the log of its calls, its compiled graphs.

    A deep copy of the model deep-copies its session with it: the copy is enabled too, and undoes itself alone.
    """

    model: PreTrainedModel
    settings: Settings
    generation: str | None = None
    journal: Journal = field(default_factory=Journal)
    configs: OwnConfigs = field(default_factory=OwnConfigs)
    log: CallLog = field(default_factory=CallLog)
    notes: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    entries: tuple[ReportEntry, ...] = ()
    layers: list[LayerDispatch] = field(default_factory=list)
    enabled: bool = False
    layer_shapes: Any = None
    report: EnableReport | None = None
    lock: SessionLock = field(default_factory=SessionLock)
    ranks: Ranks = field(default_factory=alone)
    same_graph: bool = True

    def note(self, text: str) -> None:
        self.notes[text] += 1

    def undo(self) -> None:
        """Restore the model. The report stays readable."""
        if self.enabled:
            self.enabled = False
            self.configs.carry_back()
            self.journal.undo()


def session_of(model: Any) -> Session | None:
    """The session of an enabled model, or None."""
    session = getattr(model, "__dict__", {}).get(SESSION_ATTRIBUTE)
    return session if isinstance(session, Session) else None

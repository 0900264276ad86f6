"""torchrun's agent, which also knows when each rank died and leaves no process behind. Imports torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

_PR_SET_CHILD_SUBREAPER = 36
_SECONDS_TO_REAP = 5.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Agent(LocalElasticAgent):
    """One agent of torchrun.

    `deaths` maps the local ranks that have ended to the time, in ns since the epoch; `stopped` holds those that still
    ran when the agent told them to end; `attempts` counts starts of the ranks.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.deaths: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.attempts = 0

    def _start_workers(self, worker_group: Any) -> Any:
        processes = super()._start_workers(worker_group)
        self.attempts += 1
        self.deaths = {}
        self.stopped = set()
        for local_rank, pid in processes.items():
            threading.Thread(target=_watch, args=(pid, local_rank, self.deaths), daemon=True).start()
        self._bound_shutdown()
        return processes

    def hidden_errors(self, local_rank: int) -> str:
        """The file that this rank's stderr went to and that was not shown; empty if it was shown."""
        context: Any = self._pcontext
        files = [item for log in context._tail_logs for item in log._log_files.items()]
        shown = {rank for rank, file in files if Path(file).name == "stderr.log"}
        return "" if local_rank in shown else str(context.stderrs[local_rank])

    def _bound_shutdown(self) -> None:
        """Let a failure end the other ranks within seconds, and note whom it ended.

        When a rank has failed, torchrun waits 30 s for the others after a SIGTERM, whatever --shutdown-timeout says.
        """
        context: Any = self._pcontext
        close, longest = context.close, self._shutdown_timeout

        def bounded(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            running = context.subprocess_handlers.items()
            self.stopped |= {local_rank for local_rank, handler in running if handler.proc.poll() is None}
            close(death_sig, min(timeout, longest))

        context.close = bounded


@contextlib.contextmanager
def agents() -> Iterator[list[Agent]]:
    """torchrun makes its agent from our class inside this block; the list receives it."""
    made: list[Agent] = []

    def make(*args: Any, **keywords: Any) -> Agent:
        made.append(Agent(*args, **keywords))
        return made[-1]

    torchrun: Any = api
    original = torchrun.LocalElasticAgent
    torchrun.LocalElasticAgent = make
    try:
        yield made
    finally:
        torchrun.LocalElasticAgent = original


def adopt_orphans() -> None:
    """What the ranks started and left behind becomes a child of this process, so that `end_children` finds it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """SIGKILL to every child of this process, until there is none; the signals in ENDING are ignored from here on."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    deadline = time.monotonic() + _SECONDS_TO_REAP
    while time.monotonic() < deadline:
        children = list(_children(os.getpid()))
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # pid (name) state ppid ...; the name may hold blanks and parentheses
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                yield int(entry.name)


def _watch(pid: int, local_rank: int, deaths: dict[int, int]) -> None:
    """Note when the process ends. It is left for torchrun to reap; that torchrun was quicker is an end as well."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    deaths[local_rank] = time.time_ns()

"""Which rank failed first, and what the user is told of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_kernels.errors import explain
from tpu_kernels.launch.records import Record, read_record

_LOOK_THERE = {
    "SIGKILL": "somebody, or the kernel when memory ran out, killed it: `dmesg` tells of the latter.",
    "SIGTERM": "somebody ended it from outside, a scheduler for one.",
}


# The other ranks see the sockets of a dead rank close before its end is known here.
_LATE_NEWS_NS = 250_000_000
# How a rank may end because another one failed: by an exit code, or by a runtime that aborts when it loses a peer.
_MAY_FOLLOW = ("", "SIGABRT")


@dataclass(frozen=True)
class Failure:
    """One rank that failed. `exit_code` is negative for a signal; `time_ns` is that of its error, else of its end."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    time_ns: int
    record: Record | None

    @property
    def signal_name(self) -> str:
        """The signal that killed it, for instance SIGKILL; empty if none did."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would report: 128 + N for signal N."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code


def first_failure(failures: Mapping[int, Any], deaths: Mapping[int, int], stopped: Collection[int]) -> Failure:
    """The rank whose error came first, of torchrun's ProcessFailures by global rank.

    `deaths` says when each local rank ended, in ns since the epoch; those in `stopped` were ended because another had
    failed. torchrun itself takes the lowest rank of those that it finds dead at once.
    """
    found = []
    for rank, failure in failures.items():
        record = read_record(failure.error_file_data)
        time_ns = deaths.get(failure.local_rank, failure.timestamp * 10**9) - _LATE_NEWS_NS
        if record:
            time_ns = record.time_ns
        code = record.exit_code if record else failure.exitcode
        found.append(Failure(rank, failure.local_rank, failure.pid, code, time_ns, record))
    own = [failure for failure in found if failure.local_rank not in stopped]
    return min(own or found, key=lambda failure: (failure.signal_name in _MAY_FOLLOW, failure.time_ns))


def failure_message(failure: Failure, *, world_size: int, hosts: int, attempts: int, hidden: str) -> str:
    """What the launcher says last. `hidden` names the file that took the rank's stderr, if nobody has seen it."""
    killer = failure.signal_name
    how = f"was killed by {killer}" if killer else f"failed with exit code {failure.exit_code}"
    others = "; the other ranks were ended" if hosts == 1 else "; the ranks of this host were ended"
    others = others if world_size > 1 else ""
    tries = "" if attempts == 1 else f", the last of {attempts} attempts"
    got = None
    if failure.record and not failure.record.error.startswith("SystemExit"):
        shown = failure.record.first and not hidden
        got = f"{failure.record.error} (as above)" if shown else failure.record.call_stack.strip()
    if hidden not in ("", os.devnull):
        got = "\n".join(filter(None, (got, f"its stderr is in {hidden}")))
    next_step = _LOOK_THERE.get(killer)
    if hosts > 1 and not killer:
        next_step = "if it lost a connection, look at the other hosts: a rank there may have failed before."
    return explain(
        f"rank {failure.rank} of {world_size} (process {failure.pid}) {how}{tries}{others}.",
        got=got,
        next_step=next_step,
    )

"""Runs a kernel's schedule: every branch, every copy and every wait, with the sizes and arguments of one call.

What is simulated is time, not arithmetic. A bundle takes one cycle. A copy between HBM and the core takes its turn on
the HBM (bytes over bandwidth) and arrives a fixed latency later. A wait stalls until what it waits for has arrived.
Branches follow from the scalar unit alone, so loops and predicated regions run exactly as often as on the chip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tpu_kernels.lab.cost.scalars import Instruction, ScalarUnit, Value, base_of, parse_instruction
from tpu_kernels.lab.cost.schedule import DELAY_SLOTS, Schedule

GRANULE_BYTES: Final = 32
"""The unit in which copies are counted."""

MAX_INSTRUCTIONS: Final = 5_000_000
"""Scalar instructions and copies after which a run is given up."""


@dataclass(frozen=True)
class HbmTiming:
    """The path between HBM and one core, in its cycles."""

    bytes_per_cycle: float
    latency_cycles: float


@dataclass
class Trace:
    """What happened while the kernel ran once."""

    runs: list[int]
    """How often each bundle ran."""
    cycles: float = 0.0
    """From the first bundle to the last, waits included."""
    stalled_cycles: float = 0.0
    read_bytes: int = 0
    """Bytes copied from HBM."""
    written_bytes: int = 0
    """Bytes copied to HBM."""
    copies: int = 0
    unknown_branches: int = 0
    """Branches taken or not by guess, because they depend on what a vector unit computed. A forward one is guessed
    not taken (its region runs), a backward one neither (its loop ends)."""

    complete: bool = True
    """Whether the kernel came to its end."""

    @property
    def busy_cycles(self) -> int:
        """Cycles in which a bundle was issued."""
        return sum(self.runs)

    @property
    def hbm_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclass
class _Hbm:
    timing: HbmTiming
    free_at: float = 0.0
    arrivals: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)
    credit: dict[int, int] = field(default_factory=dict)

    def copy(self, now: float, size: int, flag: Value) -> None:
        """A copy of `size` granules that is started `now` and signals on `flag`."""
        self.free_at = max(now, self.free_at) + size * GRANULE_BYTES / self.timing.bytes_per_cycle
        self.signal(self.free_at + self.timing.latency_cycles, size, flag)

    def signal(self, at: float, size: int, flag: Value) -> None:
        if flag is not None:
            self.arrivals.setdefault(flag, deque()).append((at, size))

    def wait(self, now: float, size: int, flag: Value) -> float:
        """When `size` granules have arrived on `flag`: `now` or later."""
        if flag is None:
            return now
        waiting, have = self.arrivals.get(flag, deque()), self.credit.get(flag, 0)
        while have < size and waiting:
            at, granules = waiting.popleft()
            have, now = have + granules, max(now, at)
        self.credit[flag] = max(have - size, 0)
        return now


class _Run:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule, timing: HbmTiming, arguments: Mapping[int, Sequence[int]]) -> None:
        self.schedule = schedule
        self.hbm = _Hbm(timing)
        self.unit = ScalarUnit()
        self.trace = Trace([])
        self.arguments = {
            self.unit.base(operand.name): arguments[operand.index]
            for operand in schedule.operands
            if operand.index in arguments
        }
        self.scalars = {
            operand.name: arguments[operand.index][0] if operand.index in arguments else None
            for operand in schedule.operands
            if operand.is_scalar
        }
        self.in_hbm = {self.unit.base(one.name) for one in schedule.operands if one.space == "hbm"}
        parsed = ([parse_instruction(text) for text in bundle] for bundle in schedule.bundles)
        self.program = [_ordered([one for one in bundle if one is not None]) for bundle in parsed]
        targets = {branch.at: branch for branch in schedule.branches}
        self.targets = {at: branch.target for at, branch in targets.items()}
        self.edges = [0] * (len(schedule) + 1)

    def run(self) -> Trace:
        at, started, jump, leaves, steps = 0, 0, -1, -1, 0
        now = 0.0
        end = len(self.schedule)
        while at < end and steps < MAX_INSTRUCTIONS:
            for instruction in self.program[at]:
                steps += 1
                if instruction.opcode.startswith("sbr"):
                    if self._taken(instruction):
                        jump, leaves = self.targets[at], at + DELAY_SLOTS
                else:
                    now = self._execute(instruction, now)
            now += 1
            if at == leaves:
                self._count(started, at + 1)
                at = started = jump
                leaves = -1
            else:
                at += 1
        self._count(started, at)
        self.trace.complete = at >= end
        self.trace.cycles = now
        self.trace.runs = _running_sums(self.edges)
        return self.trace

    def _taken(self, branch: Instruction) -> bool:
        allowed = self.unit.allows(branch)
        self.trace.unknown_branches += allowed is None
        return bool(allowed)

    def _count(self, start: int, end: int) -> None:
        self.edges[start] += 1
        self.edges[end] -= 1

    def _execute(self, instruction: Instruction, now: float) -> float:
        allowed = self.unit.allows(instruction)
        if instruction.otherwise is not None and not allowed:
            self.unit.write(instruction.target, None if allowed is None else self.unit.value(instruction.otherwise))
            return now
        if allowed is False:
            return now
        opcode = instruction.opcode
        if opcode.startswith("dma.done.wait"):
            return self._wait(instruction, now)
        if opcode.startswith("dma."):
            self._copy(instruction, now)
        elif opcode == "sst":
            self.unit.store(instruction)
        elif instruction.target in self.scalars:
            self.unit.write(instruction.target, self.scalars[instruction.target])
        else:
            self.unit.write(instruction.target, self.unit.evaluate(instruction))
        return now

    def _wait(self, instruction: Instruction, now: float) -> float:
        flag, size = (self.unit.value(operand) for operand in instruction.operands[:2])
        arrived = self.hbm.wait(now, size or 0, flag)
        self.trace.stalled_cycles += arrived - now
        return arrived

    def _direction(self, kind: str, source: Value, target: Value) -> str:
        """`general` copies, with several strides, do not say where from and where to; their addresses do."""
        if kind != "general":
            return kind
        ends = ("hbm" if base_of(address) in self.in_hbm else "vmem" for address in (source, target))
        return "_to_".join(ends)

    def _copy(self, instruction: Instruction, now: float) -> None:
        source, size, target, flag = (self.unit.value(operand) for operand in instruction.operands[:4])
        granules = size or 0
        kind = self._direction(instruction.opcode.removeprefix("dma."), source, target)
        if kind.endswith("_to_smem") and source in self.arguments and target is not None:
            self.unit.memory.update((target + at, value) for at, value in enumerate(self.arguments[source]))
        if "hbm" not in kind:
            self.hbm.signal(now + self.hbm.timing.latency_cycles, granules, flag)
            return
        self.trace.copies += 1
        self.trace.read_bytes += granules * GRANULE_BYTES * kind.startswith("hbm")
        self.trace.written_bytes += granules * GRANULE_BYTES * kind.endswith("hbm")
        self.hbm.copy(now, granules, flag)


def _ordered(bundle: list[Instruction]) -> tuple[Instruction, ...]:
    """Operands and phis first, because others of the bundle read them; casts, which read the others, last."""
    first, last = ("sphi", "inlined_call_operand"), "int_to_ptr"
    return tuple(sorted(bundle, key=lambda one: one.opcode.startswith(last) - one.opcode.startswith(first)))


def _running_sums(edges: list[int]) -> list[int]:
    sums, current = [], 0
    for edge in edges[:-1]:
        current += edge
        sums.append(current)
    return sums


def simulate(schedule: Schedule, timing: HbmTiming, arguments: Mapping[int, Sequence[int]] | None = None) -> Trace:
    """Runs `schedule` once.

    `arguments` are the contents of integer operands that steer the kernel (Pallas' scalar prefetch), by the number of
    the operand. Without them what depends on them is unknown.
    """
    return _Run(schedule, timing, arguments or {}).run()

"""The time that a compiled program takes on a chip, from its optimized HLO and the schedules of its kernels.

Instructions run one after the other. Each kernel or fusion is simulated by its own schedule, for cycles and bytes; one
without a schedule takes as long as its bytes. A ragged dot loops over the groups that are filled, which a schedule does
not say: where its loops are guessed, it reads each operand once. Copies that XLA starts ahead run beside what follows
and share the HBM with it. What chips say to each other takes its time on the links between them (`collectives.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpu_kernels.chips import ChipInfo
from tpu_kernels.lab.cost.collectives import Collective, collective_of
from tpu_kernels.lab.cost.dumps import KernelDump
from tpu_kernels.lab.cost.hlo import HloInstruction, HloModule, parse_hlo
from tpu_kernels.lab.cost.simulate import Trace, simulate
from tpu_kernels.lab.cost.timing import COPY_LATENCY, hbm_bandwidth, hbm_timing

Arguments = Mapping[int, Sequence[int]]
"""Contents of integer operands that steer a kernel, by number."""

Bound = Literal["hbm", "compute"]


@dataclass(frozen=True)
class OpCost:
    """What one instruction of a program costs. A copy that runs beside others costs bytes, and time where its end is
    waited for."""

    name: str
    opcode: str
    op_name: str
    """Where it comes from in the user's program."""
    seconds: float
    """Time that it adds to the program."""
    busy_seconds: float
    """Time in which bundles are issued, without waits for HBM."""
    read_bytes: int
    written_bytes: int
    trace: Trace | None
    """None for what has no schedule of its own."""
    times: int = 1
    """How often it runs (in the body of a loop); the figures are of all runs."""
    collective: Collective | None = None
    """What it is between chips."""
    source_seconds: float = 0.0
    """Of a collective: the time of the operation whose result it takes."""

    @property
    def hbm_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def bound(self) -> Bound:
        return "compute" if self.busy_seconds >= 0.8 * self.seconds and self.seconds else "hbm"


@dataclass(frozen=True)
class ProgramCost:
    """What a program costs: its instructions in order, and the sum."""

    ops: tuple[OpCost, ...]
    seconds: float
    chip: ChipInfo
    seconds_apart: float = 0.0
    """The same if collectives took no time: no overlap of theirs can gain more."""

    @property
    def read_bytes(self) -> int:
        return sum(op.read_bytes for op in self.ops)

    @property
    def written_bytes(self) -> int:
        return sum(op.written_bytes for op in self.ops)

    @property
    def hbm_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def without_schedule(self) -> tuple[OpCost, ...]:
        """Instructions that take time and whose schedule was not found, so that only their bytes count."""
        return tuple(op for op in self.ops if op.trace is None and op.seconds > 0 and not op.opcode.endswith("-done"))


class _Clock:
    """Time in the program, and when the HBM is free again."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.now = 0.0
        self.hbm_free = 0.0
        self.arrivals: dict[str, float] = {}

    def start_copy(self, name: str, moved: int) -> None:
        self.hbm_free = max(self.now, self.hbm_free) + moved / self.bandwidth
        self.arrivals[name] = self.hbm_free + COPY_LATENCY

    def end_copy(self, name: str) -> None:
        self.now = max(self.now, self.arrivals.pop(name, 0.0))

    def run(self, seconds: float, moved: int) -> None:
        """An operation's own traffic comes first, and what was started before arrives that much later."""
        taken = moved / self.bandwidth
        self.arrivals = {name: at + taken if at > self.now else at for name, at in self.arrivals.items()}
        self.hbm_free = max(self.now, self.hbm_free) + taken
        self.now += seconds


class _Program:
    def __init__(
        self,
        module: HloModule,
        dumps: Mapping[str, KernelDump],
        chip: ChipInfo,
        arguments: Callable[[HloInstruction], Arguments],
        *,
        links: bool = True,
    ) -> None:
        self.module, self.dumps, self.chip, self.arguments, self.links = module, dumps, chip, arguments, links
        self.clock = _Clock(hbm_bandwidth(chip))
        self.ops: list[OpCost] = []
        self.took: dict[str, float] = {}
        self.traces: dict[Hashable, Trace] = {}
        self.alike = {
            _signature(module, one): dumps[one.name]
            for instructions in module.computations.values()
            for one in instructions
            if one.name in dumps
        }

    def run_all(self) -> float:
        """Seconds of the whole program, at least what its bytes take."""
        self.run(self.module.entry_name)
        least = sum(op.hbm_bytes for op in self.ops) / self.clock.bandwidth
        return max(self.clock.now, self.clock.hbm_free, least)

    def run(self, computation: str, times: int = 1) -> None:
        for instruction in self.module.computations[computation]:
            if instruction.opcode in ("while", "call") and instruction.called:
                trips = instruction.trips if instruction.opcode == "while" else 1
                for called in instruction.called:
                    self.run(called, times * trips)
            elif collective := collective_of(self.module, instruction):
                self._run_collective(instruction, collective, times)
            elif instruction.starts_copy:
                self._start_copy(instruction, times)
            elif instruction.ends_copy:
                self._end_copy(instruction, times)
            elif not instruction.is_free:
                self._run_op(instruction, times)

    def _start_copy(self, instruction: HloInstruction, times: int) -> None:
        moved = self.module.hbm_bytes(instruction) * times
        if not instruction.is_prefetched:
            self.clock.start_copy(instruction.name, moved)
        to_hbm = bool(instruction.results) and instruction.results[0].space == 0
        read, written = (moved // 2, moved // 2) if to_hbm else (moved, 0)
        source = next(self.module.operands(instruction), None)
        if to_hbm and source is not None and source.results and source.results[0].space != 0:
            read, written = 0, moved
        self._add(instruction, 0.0, 0.0, read, written, None, times)

    def _end_copy(self, instruction: HloInstruction, times: int) -> None:
        before = self.clock.now
        self.clock.end_copy(instruction.operands[0] if instruction.operands else "")
        if self.clock.now > before:
            self._add(instruction, self.clock.now - before, 0.0, 0, 0, None, times)

    def _run_op(self, instruction: HloInstruction, times: int) -> None:
        before = self.clock.now
        trace = self._trace(instruction)
        if trace is None:
            moved = self.module.hbm_bytes(instruction) if instruction.opcode != "custom-call" else 0
            written = min(moved, sum(array.hbm_bytes for array in instruction.results))
            read, busy, alone = moved - written, 0.0, moved / self.clock.bandwidth
        else:
            read, written = trace.read_bytes, trace.written_bytes
            busy, alone = trace.busy_cycles / self.chip.clock_hz, trace.cycles / self.chip.clock_hz
            if trace.unknown_branches and instruction.is_ragged_dot:
                read = max(read, self.module.hbm_bytes(instruction) - written)
                alone = max(alone, (read + written) / self.clock.bandwidth)
        self.clock.run(alone * times, (read + written) * times)
        seconds = self.clock.now - before
        self._add(instruction, seconds, busy * times, read * times, written * times, trace, times)

    def _run_collective(self, instruction: HloInstruction, collective: Collective, times: int) -> None:
        """One that has an end of its own runs beside what follows, and does not take part in it."""
        trace = self._trace(instruction)
        busy = trace.busy_cycles / self.chip.clock_hz if trace else 0.0
        stalled = (trace.cycles - trace.busy_cycles) / self.chip.clock_hz if trace else 0.0
        read, written = (trace.read_bytes, trace.written_bytes) if trace else (0, 0)
        seconds = times * collective.seconds(self.chip, busy, stalled) if self.links else 0.0
        if instruction.starts_copy:
            self.clock.arrivals[instruction.name] = self.clock.now + seconds
            seconds = 0.0
        else:
            self.clock.run(seconds, (read + written) * times)
        self._add(instruction, seconds, busy * times, read * times, written * times, trace, times, collective)
        source = self._source(instruction)
        self.ops[-1] = replace(self.ops[-1], source_seconds=self.took.get(source.name, 0.0) if source else 0.0)

    def _source(self, instruction: HloInstruction) -> HloInstruction | None:
        """The operation that computed the operand of `instruction`, behind views and other layouts of it."""
        source = next(self.module.operands(instruction), None)
        while source is not None and (source.is_free or source.opcode in ("reshape", "copy", "transpose")):
            source = next(self.module.operands(source), None)
        return source

    def _trace(self, instruction: HloInstruction) -> Trace | None:
        dump = self.dumps.get(instruction.name) or self.alike.get(_signature(self.module, instruction))
        if dump is None:
            return None
        arguments = self.arguments(instruction)
        key = dump.name, tuple((number, tuple(values)) for number, values in arguments.items())
        if key not in self.traces:
            self.traces[key] = simulate(dump.schedule, hbm_timing(self.chip), arguments)
        return self.traces[key]

    def _add(
        self,
        instruction: HloInstruction,
        seconds: float,
        busy: float,
        read: int,
        written: int,
        trace: Trace | None,
        times: int,
        collective: Collective | None = None,
    ) -> None:
        names = instruction.name, instruction.opcode, instruction.op_name
        self.took[instruction.name] = seconds
        self.ops.append(OpCost(*names, seconds, busy, read, written, trace, times, collective))


def _signature(module: HloModule, instruction: HloInstruction) -> Hashable:
    """What two instructions share that do the same: the compiler schedules only one of them, and so dumps one."""
    operands = tuple(operand.results for operand in module.operands(instruction))
    bodies = tuple(
        tuple((one.opcode, one.results) for one in module.computations.get(called, ())) for called in instruction.called
    )
    name = instruction.name.rsplit(".", 1)[0] if instruction.opcode == "custom-call" else ""
    return instruction.opcode, name, instruction.results, operands, bodies


def program_cost(
    hlo: str,
    dumps: Mapping[str, KernelDump],
    chip: ChipInfo,
    arguments: Callable[[HloInstruction], Arguments] = lambda _: {},
) -> ProgramCost:
    """What the program of the optimized module `hlo` costs on `chip`.

    `dumps` are those of its compilation (`read_dumps`). `arguments` says for a kernel's instruction what its scalar
    operands hold; a kernel whose loops depend on them is guessed at without (`Trace.unknown_branches`).
    """
    program = _Program(parse_hlo(hlo), dumps, chip, arguments)
    seconds = program.run_all()
    apart = seconds
    if any(op.collective for op in program.ops):
        without = _Program(program.module, dumps, chip, arguments, links=False)
        without.traces, without.alike = program.traces, program.alike
        apart = without.run_all()
    return ProgramCost(tuple(program.ops), seconds, chip, apart)

"""The cost of one kernel call, and how near it comes to what the chip allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tpu_kernels.lab.cost.compiling import ScheduledJob
from tpu_kernels.lab.cost.dumps import KernelDump
from tpu_kernels.lab.cost.schedule import Span
from tpu_kernels.lab.cost.simulate import Trace
from tpu_kernels.lab.cost.subject import Subject, flops_seconds
from tpu_kernels.lab.cost.timing import hbm_bandwidth
from tpu_kernels.lab.cost.utilization import SPILL_UNITS
from tpu_kernels.lab.cost.xla_time import OpCost, ProgramCost

_HOT_SHARE = 0.5


@dataclass(frozen=True)
class KernelCost:
    """One call of a kernel on one generation, with all that XLA runs around it."""

    seconds: float
    kernel_seconds: float
    """Of that, in the kernel itself."""
    steps: int
    """Turns of the innermost loop in which the kernel spends its time; 1 if there is none."""
    step_cycles: float
    """Bundles of one turn, waits not counted."""
    busy_cycles: int
    stalled_cycles: float
    """Cycles of waiting for HBM."""
    read_bytes: int
    written_bytes: int
    utilization: dict[str, float]
    """Share of each unit's slots that is filled while bundles are issued."""
    spilled_slots: int
    """Vector registers written to and read back from VMEM for want of registers, over the whole call."""
    hbm_limit: float
    """Seconds to move the bytes that the op must move, at 90 % of the bandwidth."""
    mxu_limit: float
    """Seconds that the matrix unit needs for the rows that are pushed through it, or for the op's FLOPs if longer."""
    unknown_branches: int
    """Branches that were guessed, because they depend on what a vector unit computed or on contents not given."""
    complete: bool
    """Whether the simulation came to the kernel's end."""

    @property
    def limit(self) -> float:
        return max(self.hbm_limit, self.mxu_limit)

    @property
    def limited_by(self) -> Literal["HBM", "MXU"]:
        return "HBM" if self.hbm_limit >= self.mxu_limit else "MXU"

    @property
    def share_of_limit(self) -> float:
        """1 means that nothing could be faster."""
        return self.limit / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.__dict__,
            "limit": self.limit,
            "limited_by": self.limited_by,
            "share_of_limit": self.share_of_limit,
        }


def kernel_cost(subject: Subject, scheduled: ScheduledJob) -> KernelCost:
    """The cost of `subject` by its compiled kernel. ValueError if it did not compile or has no Pallas kernel in it."""
    if not scheduled.ok:
        raise ValueError(f"{subject.name} did not compile: {scheduled.error}")
    program, chip = scheduled.cost(), scheduled.chip
    kernels = [
        (op, op.trace, scheduled.dumps[op.name]) for op in program.ops if op.trace and op.opcode == "custom-call"
    ]
    if not kernels:
        raise ValueError(f"{subject.name} compiled to no Pallas kernel")
    _, trace, dump = max(kernels, key=lambda found: found[0].seconds)
    hot = hot_loop(dump, trace)
    steps = trace.runs[hot.end - 1] if hot else 1
    units = dump.utilization.totals(trace.runs)
    capacity = dict(zip(dump.utilization.units, dump.utilization.capacity, strict=True))
    pushed = max(units[unit] / capacity[unit] for unit in ("MATMUL", "MATPUSH") if unit in units)
    computed = flops_seconds(subject.needed_flops, chip.peak_bf16_flops, subject.dtype)
    return KernelCost(
        seconds=program.seconds,
        kernel_seconds=_kernel_seconds(program, kernels),
        steps=steps,
        step_cycles=sum(trace.runs[hot.start : hot.end]) / steps if hot else float(trace.busy_cycles),
        busy_cycles=trace.busy_cycles,
        stalled_cycles=trace.stalled_cycles,
        read_bytes=program.read_bytes,
        written_bytes=program.written_bytes,
        utilization=dump.utilization.shares(trace.runs),
        spilled_slots=sum(units.get(unit, 0) for unit in SPILL_UNITS),
        hbm_limit=subject.needed_bytes / hbm_bandwidth(chip),
        mxu_limit=max(pushed / chip.clock_hz, computed),
        unknown_branches=trace.unknown_branches,
        complete=trace.complete,
    )


def hot_loop(dump: KernelDump, trace: Trace) -> Span | None:
    """The innermost loop in which at least half of the bundles are issued; None if no loop has that many."""
    hot = [
        loop for loop in dump.schedule.loops if sum(trace.runs[loop.start : loop.end]) >= _HOT_SHARE * trace.busy_cycles
    ]
    return min(hot, key=len, default=None)


def _kernel_seconds(program: ProgramCost, kernels: list[tuple[OpCost, Trace, KernelDump]]) -> float:
    return min(sum(op.seconds for op, _, _ in kernels), program.seconds)

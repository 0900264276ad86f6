"""The final schedule of one kernel or XLA fusion, read from libtpu's text (`packed-bundles-post-ra`).

A bundle is what a TensorCore issues in one cycle: some instructions for its units, or none. Branches are scalar
instructions with four delay slots. A backward branch closes a loop; a forward branch skips a predicated region.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

DELAY_SLOTS: Final = 4
"""Bundles after a branch that run before it takes effect, on every generation from v5e to tpu7x."""

_BUNDLE: Final = re.compile(r"^\s*(0x[0-9a-f]+|\d+)\s+(LH|LB|LE|PB|PF|CT)?\s*:\s*(>\s*)*\{", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_BRANCH: Final = re.compile(r"sbr\.rel (?:\((?P<predicate>!?%\w+)\) )?target bundleno = (?P<target>\d+)")
_ITERATIONS: Final = re.compile(r"iteration_bounds: \(([\d, ]+)\)")
_OPERAND: Final = re.compile(
    r"%(?P<name>\w+) = inlined_call_operand\.(?P<space>[^\[]+) "
    r"\[shape: (?P<shape>\w+\[[\d,]*\]), index: (?P<index>\d+), kind: (?P<kind>\w+)"
)


@dataclass(frozen=True)
class Branch:
    """A branch at bundle `at` to bundle `target`; `predicate` is the register that decides, "!%p3" when negated."""

    at: int
    target: int
    predicate: str | None

    @property
    def leaves_at(self) -> int:
        """First bundle that does not run when the branch is taken."""
        return self.at + DELAY_SLOTS + 1


@dataclass(frozen=True)
class Span:
    """Bundles `start` to `end` - 1: the body of a loop, or a region that a branch can skip."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, other: Span) -> bool:
        return self != other and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Operand:
    """An array that the kernel is called with."""

    name: str
    """The register that holds its address, or its value where it is a scalar."""
    shape: str
    """As HLO writes it: "bf16[8,128]"."""
    index: int
    kind: str
    """ "input" or "output"."""
    space: str = "hbm"
    """ "hbm", "vmem", "smem", or "<no memory space>" for a scalar that is handed over in its register."""

    @property
    def is_scalar(self) -> bool:
        return self.space.startswith("<")


@dataclass(frozen=True)
class Schedule:
    """All bundles of a kernel: for each the texts of its instructions, without comments."""

    bundles: tuple[tuple[str, ...], ...]
    operands: tuple[Operand, ...] = ()
    iteration_bounds: tuple[int, ...] = ()
    """Steps of the grid in each dimension, where the compiler's pipeline wrote them down."""

    def __len__(self) -> int:
        return len(self.bundles)

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        found = ((at, match) for at, bundle in enumerate(self.bundles) for match in _branches_of(bundle))
        return tuple(Branch(at, int(match["target"]), match["predicate"]) for at, match in found)

    @cached_property
    def loops(self) -> tuple[Span, ...]:
        """Bodies of all loops, the longest first. (The compiler's own marks of loop depth are not reliable.)"""
        spans = (Span(branch.target, branch.leaves_at) for branch in self.branches if branch.target <= branch.at)
        return tuple(sorted(spans, key=len, reverse=True))

    @cached_property
    def regions(self) -> tuple[Span, ...]:
        """What forward branches skip, in order: `pl.when`, starts and ends of pipelines, loops that may be empty."""
        return tuple(
            Span(branch.leaves_at, branch.target) for branch in self.branches if branch.target > branch.leaves_at
        )

    @property
    def steps_loop(self) -> Span | None:
        """The loop over the steps of the grid: the longest. None for a grid of one step without any loop."""
        return self.loops[0] if self.loops else None


def parse_schedule(text: str) -> Schedule:
    """The schedule in a `packed-bundles-post-ra` dump. ValueError if its bundles are not numbered 0, 1, 2, …"""
    starts = list(_BUNDLE.finditer(text))
    bundles = []
    for number, found in enumerate(starts):
        if int(found[1], 0) != number:
            raise ValueError(f"the schedule has bundle {found[1]} where number {number} should be")
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        bundles.append(_instructions(text[found.end() : end]))
    bounds = _ITERATIONS.search(text)
    return Schedule(
        tuple(bundles),
        tuple(
            Operand(operand["name"], operand["shape"], int(operand["index"]), operand["kind"], operand["space"])
            for operand in _OPERAND.finditer(text)
        ),
        tuple(int(size) for size in bounds[1].split(",") if size.strip()) if bounds else (),
    )


def _instructions(body: str) -> tuple[str, ...]:
    plain = _COMMENT.sub(" ", body)
    inner = plain[: plain.rindex("}")] if "}" in plain else plain
    return tuple(text for part in inner.split(";;") if (text := " ".join(part.split())))


def _branches_of(bundle: tuple[str, ...]) -> Iterator[re.Match[str]]:
    for instruction in bundle:
        found = _BRANCH.search(instruction)
        if found:
            yield found

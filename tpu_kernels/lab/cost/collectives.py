"""The time of a collective between chips: hops, bytes on the links, and what its own schedule does on the chip.

How libtpu carries one out stands in the optimized HLO (`collective_algorithm_config`) and in the schedule that it dumps
for it. On a ring of n chips both directions are used:

- a short all-reduce sends every chip's whole array round, and each chip adds: n / 2 hops, n / 2 arrays on a link
- a long one is a reduce-scatter and an all-gather of pieces: 2 (n - 1) hops, (n - 1) / n of an array on a link

Before either, neighbours wait for each other, which is one hop more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tpu_kernels.chips import ChipInfo
from tpu_kernels.lab.cost.hlo import HloInstruction, HloModule

Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

HOP: Final = 1e-6
"""Seconds from a chip to its neighbour, for any message. docs/cost.md has the source, and how sure it is."""

_GROUPS: Final = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS: Final = re.compile(r"replica_groups=\[(?:\d+,)*(\d+)\]<=")
_EMITTER: Final = re.compile(r'"emitter":"(\w+)"')
_WHOLE_ARRAYS: Final = ("Short", "SinglePhase")


@dataclass(frozen=True)
class Collective:
    """One collective of a program."""

    kind: Kind
    ranks: int
    """Chips of a group."""
    bytes: int
    """Of the whole array: what is reduced, or what has been gathered."""
    short: bool = False
    """Whether whole arrays go round, and not pieces."""

    @property
    def hops(self) -> int:
        """Steps from a chip to its neighbour that wait for one another, the first meeting included."""
        around = self.ranks - 1
        match self.kind:
            case "all-reduce":
                return 1 + (self.ranks // 2 if self.short else 2 * around)
            case "all-gather" | "reduce-scatter":
                return 1 + (self.ranks // 2 if self.short else around)
            case "all-to-all":
                return 1 + self.ranks // 2
            case "collective-permute":
                return 2

    @property
    def link_bytes(self) -> int:
        """Bytes that one link carries in one direction."""
        match self.kind:
            case "all-reduce":
                return self.bytes * (self.ranks // 2) if self.short else self.bytes * (self.ranks - 1) // self.ranks
            case "all-gather" | "reduce-scatter":
                return self.bytes * (self.ranks - 1) // self.ranks // 2
            case "all-to-all":
                return self.bytes * self.ranks // 8
            case "collective-permute":
                return self.bytes

    @property
    def latency(self) -> float:
        """Seconds that it takes at any size."""
        return self.hops * HOP

    def wire(self, chip: ChipInfo) -> float:
        """Seconds that the bytes take on a link."""
        return self.link_bytes / chip.ici_link_bandwidth

    def seconds(self, chip: ChipInfo, busy: float = 0.0, stalled: float = 0.0) -> float:
        """Seconds from start to end. `busy` and `stalled` are those of its own schedule, without the links.

        A long one goes in pieces, so the chip adds one piece while the next one is under way.
        """
        local = busy + self.wire(chip) if self.short else max(busy, self.wire(chip))
        return self.latency + stalled + local


def collective_of(module: HloModule, instruction: HloInstruction) -> Collective | None:
    """The collective that `instruction` is or starts, or None."""
    one = instruction
    if one.opcode == "async-start" and one.called:
        one = module.computations.get(one.called[0], (one,))[-1]
    kind = next((name for name in KINDS if one.opcode in (name, f"{name}-start")), None)
    if kind is None or not one.results:
        return None
    ranks = _ranks(one.attributes)
    size = max(array.bytes for array in one.results) if one.starts_copy else sum(array.bytes for array in one.results)
    emitter = _EMITTER.search(one.attributes)
    short = emitter is not None and any(name in emitter[1] for name in _WHOLE_ARRAYS)
    return Collective(kind, ranks, size * ranks if kind == "reduce-scatter" else size, short)


def _ranks(attributes: str) -> int:
    if found := _GROUPS.search(attributes):
        return max(len(found[1].split(",")), 1)
    found = _IOTA_GROUPS.search(attributes)
    return int(found[1]) if found else 2

"""How many slots of each unit a kernel's bundles fill, from libtpu's `pre-delay_hlo-static-per-bundle-utilization`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SPILL_UNITS: Final = ("VLOAD:FILL", "VSTORE:SPILL")
"""Reads and writes of vector registers that did not fit."""


@dataclass(frozen=True)
class Utilization:
    """Slots per cycle of each unit, and a row of filled slots for each bundle of the schedule."""

    units: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    def totals(self, runs: Sequence[int] | None = None) -> dict[str, int]:
        """Slots filled in all, when bundle i runs `runs[i]` times (once each without `runs`)."""
        counts = [1] * len(self.rows) if runs is None else runs
        sums = [0] * len(self.units)
        for row, count in zip(self.rows, counts, strict=True):
            if count:
                for unit, slots in enumerate(row):
                    sums[unit] += slots * count
        return dict(zip(self.units, sums, strict=True))

    def shares(self, runs: Sequence[int] | None = None, cycles: float | None = None) -> dict[str, float]:
        """Share of each unit's slots that are filled, over `cycles` (by default those in which bundles run)."""
        time = cycles or (len(self.rows) if runs is None else sum(runs)) or 1
        capacity: Mapping[str, int] = dict(zip(self.units, self.capacity, strict=True))
        return {unit: filled / (capacity[unit] * time) for unit, filled in self.totals(runs).items()}


def parse_utilization(text: str) -> Utilization:
    """The table in such a dump. ValueError if it is not one."""
    lines = text.splitlines()
    if len(lines) < 4 or not lines[3].startswith("== UTILIZATION"):
        raise ValueError("this is no table of utilization per bundle: its fourth line should be `== UTILIZATION:`")
    rows = (tuple(int(word) for word in line.split()) for line in lines[4:] if line.strip())
    return Utilization(
        tuple(unit.strip() for unit in lines[1].split(",")),
        tuple(int(word) for word in lines[2].split()),
        tuple(rows),
    )

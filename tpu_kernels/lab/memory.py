"""What a compiled program takes of a chip's memories, by the compiler's own count."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_KERNEL: Final = 'custom_call_target="tpu_custom_call"'
_USED: Final = re.compile(r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"\}')
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = r"([\d.]+)([KMGT]?)"
_SHORT: Final = (
    re.compile(rf"[Uu]sed {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\(?{_SIZE}\)? exceeds available HBM \({_SIZE}\)"),
)


@dataclass(frozen=True)
class Memory:
    """Bytes of the chip's memory (HBM) that a compiled program takes."""

    argument: int
    output: int
    alias: int
    """Part of the output that lies in arguments: what is updated in place."""
    temp: int
    generated_code: int
    peak_memory: int = 0
    """The compiler's figure for the largest sum at one time, where it gives one."""

    @property
    def total(self) -> int:
        """What must be free at once: arguments, outputs that are not arguments, temporaries and code."""
        return self.argument + self.output - self.alias + self.temp + self.generated_code


def kernel_vmem(hlo: str) -> int | None:
    """Most bytes of VMEM that a Pallas kernel in an optimised module uses, as Mosaic allocated them.

    None if there is no kernel, or none that says.
    """
    used = [int(size) for line in hlo.splitlines() if _KERNEL in line for size in _USED.findall(line)]
    return max(used, default=None)


def hbm_shortage(message: str) -> int | None:
    """Bytes that a program needs beyond the chip's memory, by the compiler's message; None if it says nothing."""
    for pattern in _SHORT:
        found = pattern.search(message)
        if found:
            needed, unit, there, unit_there = found.groups()
            return round(float(needed) * _UNITS[unit] - float(there) * _UNITS[unit_there])
    return None

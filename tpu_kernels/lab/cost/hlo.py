"""An optimized HLO module as text: its instructions, and the bytes that each moves from and to HBM."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

VMEM: Final = 1
"""Memory space of vector memory in a layout, `S(1)`; HBM is 0, which is not written."""

_ITEM_BITS: Final = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY: Final = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<sizes>[\d,]*)\](?:\{(?P<layout>[^{}]*)\})?")
_HEAD: Final = re.compile(r"^\s*(?P<root>ROOT )?%(?P<name>\S+) = ")
_COMPUTATION: Final = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>\S+) .*\{$")
_CALLED: Final = re.compile(r"(?:calls|body|to_apply)=%(?P<name>[^,\s)]+)")
_SPACE: Final = re.compile(r"S\((\d+)\)")
_TRIPS: Final = re.compile(r'"?known_trip_count"?:\{"n":"(\d+)"\}')
_BOUNDS: Final = re.compile(r'"iteration_bounds":\[([^\]]*)\]')
_OP_NAME: Final = re.compile(r'op_name="([^"]*)"')
_MOVES_NOTHING: Final = frozenset({"parameter", "bitcast", "tuple", "get-tuple-element", "constant", "after-all"})


@dataclass(frozen=True)
class Array:
    """Element type, sizes and memory space of one array."""

    dtype: str
    sizes: tuple[int, ...]
    space: int = 0

    @property
    def bytes(self) -> int:
        bits = _ITEM_BITS.get(self.dtype)
        if bits is None:
            digits = re.match(r"[a-z]+?(\d+)", self.dtype)
            bits = int(digits[1]) if digits else 0
        return math.prod(self.sizes) * bits // 8

    @property
    def hbm_bytes(self) -> int:
        return self.bytes if self.space == 0 else 0


def arrays(text: str) -> tuple[Array, ...]:
    """All arrays named in an HLO type: one, or the leaves of a tuple."""
    return tuple(_array(found) for found in _ARRAY.finditer(text))


def _array(found: re.Match[str]) -> Array:
    space = _SPACE.search(found["layout"] or "")
    sizes = tuple(int(size) for size in found["sizes"].split(",") if size)
    return Array(found["dtype"], sizes, int(space[1]) if space else 0)


@dataclass(frozen=True)
class HloInstruction:
    """One instruction; `results` are the arrays of its type, `operands` the names of what it reads."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str = field(repr=False)

    @property
    def op_name(self) -> str:
        """The operation of the user's program that it comes from, "" if that is not said."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs: of a fusion, a call or a loop."""
        return tuple(found["name"] for found in _CALLED.finditer(self.attributes))

    @property
    def trips(self) -> int:
        """How often the body of a `while` runs, 1 where the compiler does not know."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else 1

    @property
    def iterations(self) -> int:
        """Steps of the pipeline of a fusion: the product of its `iteration_bounds`, 1 if there are none."""
        found = _BOUNDS.search(self.attributes)
        return math.prod(int(bound) for bound in re.findall(r"\d+", found[1])) if found else 1

    @property
    def is_free(self) -> bool:
        return self.opcode in _MOVES_NOTHING

    @property
    def is_ragged_dot(self) -> bool:
        """A product of groups of rows with a matrix each."""
        return '"is_ragged_dot":true' in self.attributes

    @property
    def starts_copy(self) -> bool:
        """Begins a copy that runs beside what follows, up to the matching `-done`."""
        return self.opcode.endswith("-start")

    @property
    def ends_copy(self) -> bool:
        return self.opcode.endswith("-done")

    @property
    def is_prefetched(self) -> bool:
        """A copy that the program before does at its end, so that it costs bytes and no time."""
        return "cross_program_prefetch_index" in self.attributes


@dataclass(frozen=True)
class HloModule:
    """All computations of a module, by name."""

    computations: dict[str, tuple[HloInstruction, ...]]
    entry_name: str

    @property
    def entry(self) -> tuple[HloInstruction, ...]:
        return self.computations[self.entry_name]

    @cached_property
    def _by_name(self) -> dict[str, HloInstruction]:
        return {one.name: one for instructions in self.computations.values() for one in instructions}

    def operands(self, instruction: HloInstruction) -> Iterator[HloInstruction]:
        """The instructions whose results `instruction` reads."""
        return (self._by_name[name] for name in instruction.operands if name in self._by_name)

    def hbm_bytes(self, instruction: HloInstruction) -> int:
        """Bytes that an instruction moves from and to HBM, by the sizes of what it reads and writes there.

        What lies in VMEM is left out. A copy moves its result, counted at each end that lies in HBM.
        """
        if instruction.is_free or instruction.ends_copy:
            return 0
        read = [array for operand in self.operands(instruction) for array in operand.results]
        if instruction.starts_copy:
            data = [array for array in instruction.results if array.sizes]
            moved = min((array.bytes for array in data), default=0)
            ends = (data[:1], read[:1])
            return sum(moved for end in ends if end and end[0].space == 0)
        return sum(array.hbm_bytes for array in (*read, *instruction.results))


def parse_hlo(text: str) -> HloModule:
    """The module in `text`. ValueError if it has no entry computation."""
    computations: dict[str, tuple[HloInstruction, ...]] = {}
    entry, current = "", None
    body: list[HloInstruction] = []
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current, body = head["name"], []
            entry = current if head["entry"] else entry
        elif line.startswith("}") and current is not None:
            computations[current], current = tuple(body), None
        elif current is not None and (instruction := _instruction(line)):
            body.append(instruction)
    if entry not in computations:
        raise ValueError("this text is no HLO module: it has no ENTRY computation")
    return HloModule(computations, entry)


def _instruction(line: str) -> HloInstruction | None:
    head = _HEAD.match(line)
    if not head:
        return None
    rest = line[head.end() :]
    type_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opcode, _, tail = rest[type_end:].strip().partition("(")
    end = _closing("(" + tail, 0) - 1
    operands = tuple(name.rstrip(",") for name in re.findall(r"%([^\s,)]+)", tail[:end]))
    return HloInstruction(head["name"], opcode, _results(opcode, rest[:type_end]), operands, tail[end + 1 :])


def _results(opcode: str, text: str) -> tuple[Array, ...]:
    """The arrays of an instruction's type; of an asynchronous copy or slice the destination comes first."""
    found = arrays(text)
    # `copy-start` names its destination first, `slice-start` its source.
    return (*found[1:2], *found[:1], *found[2:]) if opcode == "slice-start" else found


def _closing(text: str, start: int) -> int:
    """Position of the parenthesis that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return len(text)

"""The scalar unit of a TensorCore, as far as control flow needs it: integers, predicates and scalar memory.

Each instruction text of a schedule becomes an `Instruction`. Values that come from the vector units or from arrays
whose contents are not given are unknown (None), and so is all that is computed from them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Value = int | None

_INSTRUCTION: Final = re.compile(r"^%(?P<target>\w+) = (?P<opcode>[\w.]+)(?P<rest>.*)$")
_PREDICATE: Final = re.compile(r"\((!?)%(p\w+)(?:, ([^)]+))?\)")
_NOTE: Final = re.compile(r"\[(?:thread|resolvable):\$\w+\]")
_MEMORY: Final = re.compile(r"\[smem:\[(?P<inside>[^\]]*)\]\]")
_ADDRESS: Final = re.compile(r"^\[?(?P<base>#\w+)(?: \+ (?P<offset>\$0x[0-9a-f]+|%\w+|\d+))?\]?")
_ADDRESS_SPACE: Final = 1 << 48
_WORD: Final = 1 << 32


def _word(value: int) -> int:
    """As a signed 32-bit number; addresses of arrays lie far above and stay as they are."""
    if value >= _ADDRESS_SPACE // 2:
        return value
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def _shifted(value: int, places: int) -> int:
    """To the left. An address stays what it is: on some generations copies take it in other units."""
    return value if value >= _ADDRESS_SPACE // 2 else (value << places) % _WORD


def _place(register: str) -> str:
    """The register of the machine that a name means: `s3` of `s6262_s3`. Names differ where it is written anew."""
    return register.rsplit("_", 1)[-1]


def base_of(address: Value) -> int | None:
    """The address of the array that `address` lies in."""
    return None if address is None else address // _ADDRESS_SPACE * _ADDRESS_SPACE


def _unsigned(compare: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    return lambda a, b: int(compare(a % _WORD, b % _WORD))


def _not_both(a: int, b: int) -> int:
    return int(not (a and b))


_BINARY: Final[Mapping[str, Callable[[int, int], int]]] = {
    "sadd": operator.add,
    "ssub": operator.sub,
    "smul": lambda a, b: a * b % _WORD,
    "smulhi": lambda a, b: (a % _WORD) * (b % _WORD) >> 32,
    "sand": operator.and_,
    "sor": operator.or_,
    "sxor": operator.xor,
    "smin": min,
    "smax": max,
    "sshll": lambda a, b: _shifted(a, b % 32),
    "sshrl": lambda a, b: (a % _WORD) >> (b % 32),
    "sshra": lambda a, b: a >> (b % 32),
    "scalar_lea": operator.add,
    "por": lambda a, b: int(bool(a or b)),
    "pand": lambda a, b: int(bool(a and b)),
    "pnand": _not_both,
    "pxor": lambda a, b: int(bool(a) != bool(b)),
}
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _function(opcode: str) -> Callable[[int, int], int] | None:
    name, *kinds = opcode.split(".")
    if name == "scmp":
        compare = _COMPARE[kinds[0]]
        return _unsigned(compare) if kinds[1].startswith("u") else lambda a, b: int(compare(a, b))
    return _BINARY.get(name)


@dataclass(frozen=True)
class Instruction:
    """One instruction: the register it writes, its opcode, its operands as text, and what it depends on."""

    target: str
    opcode: str
    operands: tuple[str, ...]
    predicate: str | None
    negated: bool
    otherwise: str | None
    """What a predicated move writes where its predicate does not hold."""
    function: Callable[[int, int], int] | None


def parse_instruction(text: str) -> Instruction | None:
    """An instruction that scalar control flow or copies depend on; None for all others."""
    found = _INSTRUCTION.match(text)
    if not found:
        return None
    target, opcode, rest = found["target"], found["opcode"], _NOTE.sub("", found["rest"])
    wanted = opcode.startswith(("sbr", "sst", "dma", "inlined_call_operand")) or re.match(r"[sp]\d+_[sp]\d+$", target)
    if not wanted:
        return None
    predicate = _PREDICATE.search(rest)
    if predicate:
        rest = rest[: predicate.start()] + rest[predicate.end() :]
    operands = tuple(part for word in rest.split(",") if (part := word.strip()))
    return Instruction(
        target,
        opcode,
        operands,
        predicate[2] if predicate else None,
        bool(predicate and predicate[1]),
        predicate[3] if predicate else None,
        _function(opcode),
    )


class ScalarUnit:
    """Registers and scalar memory of one TensorCore while a kernel runs."""

    def __init__(self) -> None:
        self.registers: dict[str, Value] = {}
        self.memory: dict[int, Value] = {}
        self._written: dict[str, int] = {}
        self._holds: dict[str, str] = {}
        self._bases: dict[str, int] = {}
        self._clock = 0

    def base(self, name: str) -> int:
        """The address of an allocation or of an operand in HBM: far from all others."""
        return self._bases.setdefault(name, (len(self._bases) + 1) * _ADDRESS_SPACE)

    def allows(self, instruction: Instruction) -> bool | None:
        """Whether the instruction's predicate lets it run; None if that is unknown."""
        if instruction.predicate is None:
            return True
        value = self.registers.get(instruction.predicate)
        return None if value is None else bool(value) != instruction.negated

    def value(self, operand: str) -> Value:
        """Of a register, a number or an address, as the schedule writes it."""
        if operand.startswith("%"):
            return self.registers.get(operand[1:].split()[0])
        address = _ADDRESS.match(operand)
        if address:
            offset = self._offset(address["offset"])
            return None if offset is None else self.base(address["base"]) + offset
        try:
            return _word(int(operand.split()[0], 0))
        except ValueError:
            return None

    def _offset(self, text: str | None) -> Value:
        if text is None:
            return 0
        return self.value(text) if text.startswith("%") else int(text.lstrip("$"), 0)

    def write(self, register: str, value: Value) -> None:
        self._clock += 1
        self.registers[register] = value
        self._written[register] = self._clock
        self._holds[_place(register)] = register

    def store(self, instruction: Instruction) -> None:
        """`sst [smem:[WHERE]] WHAT`; with a predicate a comma stands between the two."""
        where = self._memory_address(instruction.operands[0])
        if where is not None:
            self.memory[where] = self.value(" ".join(instruction.operands).split("]]", 1)[1].strip())

    def evaluate(self, instruction: Instruction) -> Value:
        """What the instruction writes to its register."""
        opcode, operands = instruction.opcode, instruction.operands
        if opcode.startswith("inlined_call_operand"):
            return self.base(instruction.target)
        if opcode == "sld":
            where = self._memory_address(operands[0])
            return None if where is None else self.memory.get(where)
        if opcode == "sphi":
            return self._latest(instruction)
        values = [self.value(operand) for operand in operands]
        if opcode == "scalar_select":
            return None if values[0] is None else values[1 if values[0] else 2]
        if opcode.startswith(("smov", "pmov", "int_to_ptr")):
            return values[-1]
        if opcode == "pneg":
            return None if values[0] is None else int(not values[0])
        return self._binary(instruction, values)

    def _latest(self, choice: Instruction) -> Value:
        """What arrives at a loop's head: the operand written last, or what was written to their register since."""
        names = [name[1:] for name in choice.operands]
        holder = self._holds.get(_place(choice.target))
        if holder is not None and all(_place(name) == _place(choice.target) for name in names):
            names.append(holder)
        return self.registers.get(max(names, key=lambda name: self._written.get(name, 0)))

    def _binary(self, instruction: Instruction, values: list[Value]) -> Value:
        if instruction.function is None or len(values) != 2:
            return None
        left, right = values
        if left is None or right is None:
            return _decided(instruction.opcode, values)
        return _word(instruction.function(left, right))

    def _memory_address(self, operand: str) -> Value:
        inside = _MEMORY.match(operand)
        return self.value(inside["inside"]) if inside else None


def _decided(opcode: str, values: list[Value]) -> Value:
    """Of a logical function with an unknown argument, where the other one decides."""
    known = next((value for value in values if value is not None), None)
    if opcode == "por" and known:
        return 1
    if opcode == "pand" and known == 0:
        return 0
    return 1 if opcode == "pnand" and known == 0 else None

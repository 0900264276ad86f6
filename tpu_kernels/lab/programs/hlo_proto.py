"""Makes an optimised module of libtpu readable for the jaxlib that is here, which is older."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

# Numbers of fields: HloModuleProto.computations, HloComputationProto.instructions, HloInstructionProto.opcode and
# .operand_ids (xla/service/hlo.proto).
COMPUTATIONS: Final = 3
INSTRUCTIONS: Final = 2
OPCODE: Final = 2
OPERANDS: Final = 36

_VARINT: Final = 0
_FIXED_64: Final = 1
_BYTES: Final = 2
_FIXED_32: Final = 5


def module_of(message: bytes) -> bytes:
    """Field 1 of a serialized HloModuleProtoWithConfig: the HloModuleProto, without its configuration.

    Raises ValueError where there is none.
    """
    try:
        return next(value for number, value, _ in _fields(message) if number == 1)
    except (StopIteration, IndexError):
        raise ValueError("libtpu's optimised program is not an HloModuleProtoWithConfig") from None


def readable(module: bytes) -> bytes:
    """The same HloModuleProto, with one operand for every `async-update`.

    libtpu writes several (the SparseCore's scatters have them), and this jaxlib accepts one: the operation that is
    under way, which comes first.
    """
    return _changed(module, COMPUTATIONS, lambda part: _changed(part, INSTRUCTIONS, _with_one_operand))


def _with_one_operand(instruction: bytes) -> bytes:
    fields = list(_fields(instruction))
    if not any(number == OPCODE and value == b"async-update" for number, value, _ in fields):
        return instruction
    kept, seen = [], False
    for number, value, whole in fields:
        if number != OPERANDS:
            kept.append(whole)
        elif not seen:
            seen = True
            _, end = _varint(value, 0) if whole[0] & 7 == _BYTES else (0, len(value))
            kept.append(_bytes_field(OPERANDS, value[:end]) if whole[0] & 7 == _BYTES else whole)
    return b"".join(kept)


def _changed(message: bytes, field: int, change: Callable[[bytes], bytes]) -> bytes:
    return b"".join(
        _bytes_field(number, change(value)) if number == field else whole for number, value, whole in _fields(message)
    )


def _bytes_field(number: int, value: bytes) -> bytes:
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, content and the whole encoding of each field, in order. IndexError where it is no message."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        kind = tag & 7
        begin = position
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _BYTES:
            size, begin = _varint(message, position)
            position = begin + size
        elif kind in (_FIXED_64, _FIXED_32):
            position += 8 if kind == _FIXED_64 else 4
        else:
            raise IndexError("this is no protocol buffer")
        yield tag >> 3, message[begin:position], message[start:position]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """A number and the position behind it."""
    value = shift = 0
    while True:
        byte = message[position]
        position, value, shift = position + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, position


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])

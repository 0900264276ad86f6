"""Modules of libtpu made readable: messages written by hand, field by field."""

from __future__ import annotations

import pytest

from tpu_kernels.lab.programs.hlo_proto import module_of, readable


def field(number: int, content: bytes | int) -> bytes:
    """One field: a number as a varint, bytes with their length; small ones only."""
    if isinstance(content, int):
        return tag(number << 3) + tag(content)
    return tag(number << 3 | 2) + tag(len(content)) + content


def tag(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


def module(opcode: bytes, operands: bytes) -> bytes:
    instruction = field(1, b"some.1") + field(2, opcode) + operands + field(35, 300)
    return field(1, b"name") + field(3, field(1, b"main") + field(2, instruction)) + field(4, 7)


PACKED, ONE_BY_ONE = field(36, bytes([200, 1, 5, 6])), field(36, 200) + field(36, 5) + field(36, 6)


@pytest.mark.parametrize(
    ("operands", "kept"), [(PACKED, field(36, bytes([200, 1]))), (ONE_BY_ONE, field(36, 200))], ids=["packed", "apart"]
)
def test_an_update_keeps_its_first_operand(operands: bytes, kept: bytes) -> None:
    assert readable(module(b"async-update", operands)) == module(b"async-update", kept)


def test_everything_else_stays_as_it_is() -> None:
    for opcode in (b"async-start", b"fusion"):
        assert readable(module(opcode, PACKED)) == module(opcode, PACKED)


def test_the_module_in_its_envelope() -> None:
    inner = module(b"fusion", PACKED)
    assert module_of(field(2, b"configuration") + field(1, inner)) == inner
    for broken in (b"", field(2, b"configuration"), b"\x0a\xff"):
        with pytest.raises(ValueError, match="HloModuleProtoWithConfig"):
            module_of(broken)

"""What the TPU compiler and Pallas say about a program that they refuse, in one line that a user understands."""

from __future__ import annotations

import re
from typing import Final

_CODES: Final = (
    "Unknown|InvalidArgument|ResourceExhausted|Internal|Unimplemented|FailedPrecondition|NotFound"
    "|INVALID_ARGUMENT|RESOURCE_EXHAUSTED|INTERNAL|UNIMPLEMENTED|FAILED_PRECONDITION|NOT_FOUND"
)
_PREFIX: Final = re.compile(rf"^(JaxRuntimeError: )?(({_CODES}): )?(E\d+: )?(XLA:TPU compile permanent error\. )?")
_BLOCK: Final = re.compile(
    r"last two dimensions of your block shape are divisible by (?P<sublanes>\d+) and (?P<lanes>\d+).*?"
    r"Block spec for (?P<what>\S+) in pallas_call (?P<where>.*?) has block shape (?P<block>\(.*?\)), "
    r"array shape (?P<array>\([\d, ]*\))"
)


_SCOPED: Final = re.compile(
    r"memory space vmem while allocating on stack for %(?P<kernel>[\w.-]+?)(\.\d+)? = .*?"
    r"Scoped allocation with size (?P<size>\S+) and limit (?P<limit>\S+) exceeded scoped vmem limit by (?P<by>[\d.]+\w)"
)
_MODULE: Final = re.compile(r"\.? HLO module: \S+$")


def one_line(message: str, width: int = 240) -> str:
    """The telling part of a compiler's message, as one line of at most `width` characters."""
    text = re.sub(r"\s+", " ", message.split("\n\n")[0].split("\nSee ")[0]).strip()
    text = _block(text) or _scoped(text) or _MODULE.sub("", _PREFIX.sub("", text, count=1))
    return text if len(text) <= width else text[: width - 1] + "…"


def _block(text: str) -> str | None:
    """Pallas refuses a block shape."""
    found = _BLOCK.search(text)
    if not found:
        return None
    sizes = re.sub(r"Blocked\(block_size=(\d+)\)", r"\1", found["block"])
    return (
        f"block shape {sizes} of {found['what']} in pallas_call {found['where']} does not tile the array"
        f" {found['array']}: its last two sizes must be multiples of {found['sublanes']} and {found['lanes']},"
        " or the array's own"
    )


def _scoped(text: str) -> str | None:
    """A kernel's blocks and scratch exceed the VMEM that it may use."""
    found = _SCOPED.search(text)
    if not found:
        return None
    return (
        f"kernel {found['kernel']} overflows VMEM: its blocks and scratch take {found['size']}, {found['by']} more than"
        f" its limit of {found['limit']} (vmem_limit_bytes)"
    )

"""What the TPU compiler and Pallas say about a program that they refuse, in one line that a user understands."""

from __future__ import annotations

import re
from typing import Final

_PREFIX: Final = re.compile(
    r"^(\w*Error: )?((INVALID_ARGUMENT|RESOURCE_EXHAUSTED|INTERNAL|UNIMPLEMENTED|FAILED_PRECONDITION): )?"
)
_WRAPPERS: Final = re.compile(r"^(XLA:TPU compile permanent error\. |Compile time HBM OOM: |E\d+: )")
_BLOCK: Final = re.compile(
    r"last two dimensions of your block shape are divisible by (?P<sublanes>\d+) and (?P<lanes>\d+).*?"
    r"Block spec for (?P<what>\S+) in pallas_call (?P<where>.*?) has block shape (?P<block>\(.*?\)), "
    r"array shape (?P<array>\([\d, ]*\))"
)


def one_line(message: str, width: int = 240) -> str:
    """The telling part of a compiler's message, as one line of at most `width` characters."""
    text = re.sub(r"\s+", " ", message.split("\n\n")[0].split("\nSee ")[0]).strip()
    block = _BLOCK.search(text)
    if block:
        sizes = re.sub(r"Blocked\(block_size=(\d+)\)", r"\1", block["block"])
        text = (
            f"block shape {sizes} of {block['what']} in pallas_call {block['where']} does not tile the array"
            f" {block['array']}: its last two sizes must be multiples of {block['sublanes']} and {block['lanes']},"
            " or the array's own"
        )
    elif re.match(r"^(JaxRuntimeError|\w+): [A-Z_]+: ", text):
        text = _PREFIX.sub("", text, count=1)
    return text if len(text) <= width else text[: width - 1] + "…"

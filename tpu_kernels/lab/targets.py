"""What to compile for: a TPU generation, or a topology by libtpu's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tpu_kernels.chips import ChipInfo, chip
from tpu_kernels.errors import explain

GENERATIONS: Final = ("v5e", "v6e", "tpu7x")
"""The generations that the bundled kernels are compiled for."""


@dataclass(frozen=True)
class Target:
    """A topology that libtpu compiles for, and the chip that it consists of."""

    name: str
    """As it was asked for: "v6e", or "v6e:1x1"."""
    topology: str
    """libtpu's name: "v6e:1x1"."""
    chip: ChipInfo


def target_of(name: str) -> Target:
    """The target called `name`: a generation ("v5e") or a topology ("v5e:1x1", "tpu7x:2x2x1").

    Raises ValueError for a name that is neither. Whether the topology exists, libtpu alone knows.
    """
    generation, colon, shape = name.partition(":")
    info = chip(generation)
    if not colon:
        return Target(name, info.topology, info)
    if not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        raise ValueError(
            explain(
                "This is not a topology.",
                needs=f"a generation and the chips along each side, for example {info.topology}",
                got=repr(name),
            )
        )
    return Target(name, name, info)

"""What to compile for: a TPU generation, or a topology by libtpu's name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from tpu_kernels.chips import ChipInfo, chip
from tpu_kernels.errors import explain

GENERATIONS: Final = ("v5e", "v6e", "tpu7x")
"""The generations that the bundled kernels are compiled for."""

_DEVICES_OF_A_CHIP: Final = {"tpu7x": 2}
_LARGER: Final = {1: ("2x4", "4x4"), 2: ("2x2x2", "2x2x4")}
"""Larger topologies of chips in a plane and in space, by how many "x" a name has."""


@dataclass(frozen=True)
class Target:
    """A topology that libtpu compiles for, and the chip that it consists of."""

    name: str
    """As it was asked for: "v6e", or "v6e:1x1"."""
    topology: str
    """libtpu's name: "v6e:1x1"."""
    chip: ChipInfo

    @property
    def devices(self) -> int:
        """Torch devices of the topology: chips, or halves of chips on tpu7x."""
        sides = self.topology.partition(":")[2].split("x")
        return math.prod(int(side) for side in sides) * _DEVICES_OF_A_CHIP.get(self.chip.name, 1)


def target_of(name: str, devices: int = 1) -> Target:
    """The target called `name`: a generation ("v5e") or a topology ("v5e:1x1", "tpu7x:2x2x1").

    Of a generation the smallest topology with that many `devices` is taken. Raises ValueError for a name that is
    neither, and for a topology with fewer devices. Whether the topology exists, libtpu alone knows.
    """
    target = _named(name, devices)
    if target.devices < devices:
        raise ValueError(
            explain(
                f"A model divided over {devices} chips does not fit this topology.",
                needs=f"{devices} devices or more",
                got=f"{target.topology}, which has {target.devices}",
                next_step="name the generation alone, or a larger topology.",
            )
        )
    return target


def _named(name: str, devices: int) -> Target:
    generation, colon, shape = name.partition(":")
    info = chip(generation)
    if not colon:
        smallest = info.topology.partition(":")[2]
        sizes = (info.topology, *(f"{generation}:{sides}" for sides in _LARGER[smallest.count("x")]))
        targets = [Target(name, topology, info) for topology in sizes]
        return next((target for target in targets if target.devices >= devices), targets[-1])
    if not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        raise ValueError(
            explain(
                "This is not a topology.",
                needs=f"a generation and the chips along each side, for example {info.topology}",
                got=repr(name),
            )
        )
    return Target(name, name, info)

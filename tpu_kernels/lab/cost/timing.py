"""The figures by which cycles and bytes become time. docs/cost.md has the source of each."""

from __future__ import annotations

from typing import Final

from tpu_kernels.chips import ChipInfo
from tpu_kernels.lab.cost.simulate import HbmTiming

BANDWIDTH_SHARE: Final = 0.9
"""Part of the peak HBM bandwidth that long copies reach."""

COPY_LATENCY: Final = 0.42e-6
"""Seconds from the start of a small copy to its arrival."""


def hbm_bandwidth(chip: ChipInfo) -> float:
    """Bytes per second that one core can count on."""
    return BANDWIDTH_SHARE * chip.hbm_bandwidth / chip.tensor_cores


def hbm_timing(chip: ChipInfo) -> HbmTiming:
    """The same in cycles of the chip's clock."""
    return HbmTiming(hbm_bandwidth(chip) / chip.clock_hz, COPY_LATENCY * chip.clock_hz)

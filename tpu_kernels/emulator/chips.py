"""Is there a TPU in this machine? Asked of the PCI bus and /dev alone, as torch_tpu does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

SYSROOT_VARIABLE = "TPU_KERNELS_SYSROOT"

_GOOGLE = "0x1ae0"
# Other Google devices (the virtual network card of every Google Cloud machine) share the vendor.
_GENERATIONS = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}


@dataclass(frozen=True)
class TpuChip:
    """One TPU that this process could open: generation, and the device node that leads to it."""

    generation: str
    node: str


def find_tpu_chips(root: str | os.PathLike[str] | None = None) -> tuple[TpuChip, ...]:
    """TPU chips that this machine exposes to this process, in bus order.

    A chip counts if the PCI bus under `root`/sys lists it and either its VFIO group or an
    accelerator node stands in `root`/dev; that is when torch_tpu would use it. `root` defaults to
    the environment variable TPU_KERNELS_SYSROOT, else to "/".
    """
    base = Path(root if root is not None else os.environ.get(SYSROOT_VARIABLE, "/"))
    accelerators = _accelerator_nodes(base)
    chips = []
    for device in _children(base / "sys/bus/pci/devices"):
        if _text(device / "vendor") != _GOOGLE:
            continue
        generation = _GENERATIONS.get(_text(device / "device"))
        if generation is None:
            continue
        node = _vfio_node(base, device) or (accelerators.pop(0) if accelerators else None)
        if node is not None:
            chips.append(TpuChip(generation, node))
    return tuple(chips)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _accelerator_nodes(base: Path) -> list[str]:
    nodes = [path for path in _children(base / "dev") if re.fullmatch(r"accel\d+", path.name)]
    return [f"/dev/{path.name}" for path in nodes]


def _vfio_node(base: Path, device: Path) -> str | None:
    try:
        group = (device / "iommu_group").readlink().name
    except OSError:
        return None
    return f"/dev/vfio/{group}" if (base / "dev/vfio" / group).exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""

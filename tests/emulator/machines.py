"""Folders that look like the /sys and /dev of a machine."""

from __future__ import annotations

from pathlib import Path


def add_pci_device(
    root: Path, address: str, *, device: str, vendor: str = "0x1ae0", vfio_group: str | None = None
) -> None:
    """Add a PCI device to the machine in folder `root`, exposed through VFIO if it has a group."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "device").write_text(device + "\n")
    if vfio_group is not None:
        (folder / "iommu_group").symlink_to(f"/sys/kernel/iommu_groups/{vfio_group}")
        (root / "dev/vfio").mkdir(parents=True, exist_ok=True)
        (root / "dev/vfio" / vfio_group).touch()

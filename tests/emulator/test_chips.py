"""Which machines have a TPU, by their PCI bus and device nodes."""

from __future__ import annotations

from pathlib import Path

from tests.emulator.machines import add_pci_device
from tpu_kernels.emulator.chips import TpuChip, find_tpu_chips


def test_a_machine_without_pci_has_none(tmp_path: Path) -> None:
    assert find_tpu_chips(tmp_path) == ()


def test_chips_behind_vfio(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x0063", vfio_group="3")
    add_pci_device(tmp_path, "0000:00:05.0", device="0x006f", vfio_group="7")
    assert find_tpu_chips(tmp_path) == (TpuChip("v5e", "/dev/vfio/3"), TpuChip("v6e", "/dev/vfio/7"))


def test_chip_of_the_accel_driver(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x005e")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    assert find_tpu_chips(tmp_path) == (TpuChip("v4", "/dev/accel0"),)


def test_chip_that_this_process_cannot_open_does_not_count(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x0063")
    assert find_tpu_chips(tmp_path) == ()


def test_other_devices_of_google_and_of_others_do_not_count(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x0042", vfio_group="3")
    add_pci_device(tmp_path, "0000:00:05.0", vendor="0x10de", device="0x0063", vfio_group="4")
    (tmp_path / "dev/accel0").touch()
    assert find_tpu_chips(tmp_path) == ()

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpu_kernels.runtime.doctor import Diagnosis, diagnose
from tpu_kernels.runtime.stack import Finding, Package, installed


def nothing_installed(_name: str) -> Package | None:
    return None


def get(diagnosis: Diagnosis, name: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.name == name)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "TPU_KERNELS_SPECS", "TPU_KERNELS_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_KERNELS_SYSROOT", str(tmp_path))


def add_tpu(root: Path, *, node: bool = True) -> None:
    """What the kernel of a v5e machine shows below / for one chip."""
    device = root / "sys/bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1ae0\n")
    (device / "device").write_text("0x0063\n")
    (root / "dev").mkdir(exist_ok=True)
    if node:
        (root / "dev/accel0").touch()


def test_this_machine_is_sound() -> None:
    diagnosis = diagnose()
    broken = [finding for finding in diagnosis.findings if finding.status == "broken"]
    assert diagnosis.ok, broken
    assert get(diagnosis, "TPU chips").status == "info"
    assert "tpu-kernels sets it" in get(diagnosis, "torch.backends.tpu").found
    assert get(diagnosis, "emulator").status == "ok"
    assert get(diagnosis, "kernel specs").status == "ok"
    assert all(finding.remedy for finding in diagnosis.findings if finding.status in ("warning", "broken"))


def test_with_nothing_installed_every_problem_has_a_remedy_and_nothing_raises() -> None:
    diagnosis = diagnose(nothing_installed)
    assert not diagnosis.ok
    assert get(diagnosis, "transformers").found == "not installed"
    assert get(diagnosis, "torch").status == "broken"
    assert any("not tried: packages are missing" in finding.found for finding in diagnosis.findings)
    assert get(diagnosis, "emulator").remedy == 'pip install "tpu-kernels[emulator]"'
    assert all(finding.remedy for finding in diagnosis.findings if finding.status in ("warning", "broken"))


def test_a_tpu_that_torch_does_not_see_is_broken(tmp_path: Path) -> None:
    add_tpu(tmp_path)
    diagnosis = diagnose()
    assert get(diagnosis, "TPU chips").found == "v5e at /dev/accel0"
    assert not diagnosis.ok
    assert get(diagnosis, "torch device").found == "torch's accelerator is None, though there is a TPU"
    tcmalloc = get(diagnosis, "tcmalloc")
    assert tcmalloc.status == "warning"
    assert "LD_PRELOAD" in tcmalloc.remedy


def test_a_tpu_with_autoload_switched_off_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert get(diagnose(nothing_installed), "torch_tpu autoload").status == "warning"
    add_tpu(tmp_path)
    assert get(diagnose(nothing_installed), "torch_tpu autoload").status == "broken"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every device")
def test_a_tpu_that_may_not_be_opened_is_broken(tmp_path: Path) -> None:
    add_tpu(tmp_path)
    (tmp_path / "dev/accel0").chmod(0)
    assert "no permission" in get(diagnose(nothing_installed), "TPU chips").found


def test_device_nodes_without_a_chip_on_the_bus_are_strange(tmp_path: Path) -> None:
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev/vfio/0").touch()
    chips = get(diagnose(nothing_installed), "TPU chips")
    assert chips.status == "warning"
    assert "no TPU on the PCI bus" in chips.found
    assert "--privileged" in chips.remedy


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("raise ImportError('libtorch.so is not there')", "libtorch.so is not there (exit code 1)"),
        ("import os; os.abort()", "(exit code -6)"),
        ("print('no torch at all')", "AttributeError"),
    ],
)
def test_a_torch_that_does_not_import_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, found: str
) -> None:
    (tmp_path / "torch.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    diagnosis = diagnose(installed)
    broken = [finding for finding in diagnosis.findings if finding.status == "broken"]
    assert [finding.name for finding in broken] == ["torch"]
    assert found in broken[0].found


def test_a_malformed_spec_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("schema_version: 1\nnmae: x\n")
    monkeypatch.setenv("TPU_KERNELS_SPECS", str(tmp_path))
    found = get(diagnose(nothing_installed), "kernel specs")
    assert found.status == "broken"
    assert f"{tmp_path}/a.yaml:2: unknown key `nmae`" in found.found


def test_being_switched_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_DISABLE", "1")
    assert get(diagnose(nothing_installed), "TPU_KERNELS_DISABLE").status == "warning"


def test_json_form() -> None:
    data = diagnose(nothing_installed).as_dict()
    assert data["ok"] is False
    assert set(data["findings"][0]) == {"name", "status", "found", "needs", "remedy"}

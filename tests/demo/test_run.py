"""`run_demo`: how the process is started, and the whole demonstration on the emulated TPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpu_kernels.demo import run_demo
from tpu_kernels.demo.prompts import PROMPTS
from tpu_kernels.demo.run import worker_arguments
from tpu_kernels.emulator.chips import SYSROOT_VARIABLE


def _machine_with_a_v6e(root: Path) -> None:
    device = root / "sys/bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1ae0\n")
    (device / "device").write_text("0x006f\n")
    (root / "dev").mkdir()
    (root / "dev/accel0").touch()


def test_a_tpu_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_with_a_v6e(tmp_path)
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    arguments = worker_arguments(new_tokens=5, model="folder")
    assert Path(arguments[0]).name == "worker.py"
    assert arguments[1:] == ["--new-tokens", "5", "--model", "folder"]


def test_the_emulator_is_used_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    arguments = worker_arguments(new_tokens=24, model=None)
    assert arguments[:2] == ["-m", "tpu_kernels.emulator"]
    assert Path(arguments[2]).is_file()
    assert arguments[3:] == ["--new-tokens", "24"]


def test_the_whole_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run_demo(new_tokens=6)
    printed, errors = capfd.readouterr()
    assert code == 0, printed + errors
    assert "on the emulated TPU" in printed
    assert "29 of 29 layers swapped" in printed
    assert re.search(r"Tokens equal plain SDPA's: yes, all \d+\.", printed)
    lines = re.findall(r"^│ +(\d+) │ +(\d+) │ +(\d+) │$", printed, flags=re.MULTILINE)
    rows = [tuple(map(int, line)) for line in lines]
    assert len(rows) == len(PROMPTS)
    assert len({row[0] for row in rows}) == len(PROMPTS), "the prompts must differ in length"
    assert 0 < rows[0][2] < 20
    assert [row[2] for row in rows[1:]] == [0] * (len(PROMPTS) - 1)
    assert all(row[1] > 20 for row in rows), "the plain flow compiles at every length"


def test_a_model_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_demo(new_tokens=1, model=tmp_path / "nowhere") == 1
    assert "nowhere" in capfd.readouterr().err

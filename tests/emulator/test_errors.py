"""What the emulator refuses, and what it says then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.machines import add_pci_device
from tests.emulator.processes import python
from tpu_kernels import emulator
from tpu_kernels.errors import CompileError, EmulatorError

START = "from tpu_kernels import emulator; emulator.start()"
DEVICE = "import torch; print((torch.ones(2).to('tpu') + 1).cpu().tolist())"


def test_torch_imported_too_early() -> None:
    process = python("-c", f"import torch; {START}")
    assert process.returncode == 1
    assert "EmulatorError: The emulated TPU cannot start: torch was imported before it." in process.stderr
    assert "torch and torch_tpu already in sys.modules" in process.stderr
    assert "call tpu_kernels.emulator.start() in the first lines of the program" in process.stderr
    assert "-p tpu_kernels.emulator.pytest_plugin" in process.stderr


@pytest.mark.parametrize(("module", "package"), [("lammps_jax_pjrt_cpu", "lammps-jax-pjrt-cpu"), ("pypjrt", "pypjrt")])
def test_package_not_installed(module: str, package: str) -> None:
    process = python("-c", f"import sys; sys.modules['{module}'] = None; {START}")
    assert process.returncode == 1
    assert f"The emulated TPU cannot start: {package} is not installed." in process.stderr
    assert 'install both: pip install "tpu-kernels[emulator]"' in process.stderr


def test_plugin_without_its_shared_object(tmp_path: Path) -> None:
    code = f"import lammps_jax_pjrt_cpu as p; p.PLUGIN_PATH = '{tmp_path}/plugin.so'; {START}"
    process = python("-c", code)
    assert "the CPU plugin's shared object is missing" in process.stderr
    assert f"Needs: {tmp_path}/plugin.so" in process.stderr


def _tried(version: str) -> str:
    return f"from tpu_kernels.emulator import preflight; preflight.TRIED_TORCH_TPU = '{version}'"


def test_torch_tpu_of_an_untried_minor_version() -> None:
    process = python("-c", f"{_tried('0.1.4')}; {START}")
    assert process.returncode == 1
    assert "The emulated TPU has not been tried with torch_tpu 0.2.0." in process.stderr
    assert "Needs: torch_tpu 0.1.4" in process.stderr
    assert "pip install torch_tpu==0.1.4" in process.stderr
    assert "TPU_KERNELS_EMULATOR_FORCE=1" in process.stderr


def test_machine_with_a_tpu(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x006f", vfio_group="2")
    process = python("-c", START, TPU_KERNELS_SYSROOT=str(tmp_path))
    assert process.returncode == 1
    assert "The emulated TPU was not started: this machine has a real one." in process.stderr
    assert "Got:   TPU v6e at /dev/vfio/2" in process.stderr
    assert "run the program as it is, without the emulator" in process.stderr


@pytest.mark.parametrize(
    ("tried", "start", "variable"),
    [("0.1.4", "emulator.start(force=True)", "0"), ("0.2.9", "emulator.start()", "1")],
    ids=["argument-and-minor-version", "variable-and-patch-release"],
)
def test_forced(tmp_path: Path, tried: str, start: str, variable: str) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x006f", vfio_group="2")
    code = f"{_tried(tried)}; from tpu_kernels import emulator; {start}; {DEVICE}"
    process = python("-c", code, TPU_KERNELS_SYSROOT=str(tmp_path), TPU_KERNELS_EMULATOR_FORCE=variable)
    assert process.stdout == "[2.0, 2.0]\n", process.stderr
    assert "UserWarning: The emulated TPU has not been tried with torch_tpu 0.2.0." in process.stderr


def test_torch_tpu_of_an_untried_patch_release_is_no_refusal() -> None:
    code = f"{_tried('0.2.9')}; preflight.check_torch_tpu(force=False); print('went on')"
    assert python("-c", code).stdout == "went on\n"


def test_pytest_plugin_reports_a_refusal_as_a_usage_error(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:04.0", device="0x0063", vfio_group="1")
    arguments = ("-m", "pytest", "-p", "tpu_kernels.emulator.pytest_plugin", "--co", str(tmp_path))
    process = python(*arguments, TPU_KERNELS_SYSROOT=str(tmp_path))
    assert process.returncode == 4
    assert "ERROR: The emulated TPU was not started: this machine has a real one." in process.stderr


def test_host_tensor_in_a_compiled_graph_is_an_error() -> None:
    import torch

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(3.0).to(x.device)

    with pytest.raises(Exception, match=r"made on the CPU and used on the TPU") as caught:
        torch.compile(scaled, backend="tpu")(torch.ones(3).to("tpu"))
    assert "a (3,) torch.float32 CPU tensor of `arange` in `_to_copy`" in str(caught.value)
    assert "return x * torch.arange(3.0).to(x.device)" in str(caught.value)


def test_index_reduce_is_an_error_where_torch_tpu_would_end_the_process() -> None:
    import torch

    index, line, plane = torch.tensor([1, 0, 1]), torch.tensor([3.0, 1.0, 2.0]), torch.ones(3, 3)
    expected = torch.zeros(2).index_reduce(0, index, line, "amax")
    got = torch.zeros(2).to("tpu").index_reduce(0, index.to("tpu"), line.to("tpu"), "amax")
    assert got.cpu().tolist() == expected.tolist()
    with pytest.raises(CompileError, match=r"cannot do index_reduce on a tensor of more than one dimension"):
        plane.to("tpu").index_reduce(0, index.to("tpu"), plane.to("tpu"), "amax")


def test_torch_tpu_itself_ends_the_process_for_a_host_tensor_in_a_compiled_graph() -> None:
    script = "tests/emulator/reproductions/host_tensor_in_graph.py"
    process = python("-m", "tpu_kernels.emulator", script)
    assert process.returncode == -6
    assert process.stdout == "compiling\n"
    assert "identified an argument that was not provided" in process.stderr
    assert "torch_tpu::TraverseAndCompile()" in process.stderr


def test_capture_inside_a_capture() -> None:
    with (
        emulator.capture(run=True),
        pytest.raises(EmulatorError, match="captures do not nest"),
        emulator.capture(),
    ):
        pass


def test_capture_without_the_emulator() -> None:
    process = python("-c", "from tpu_kernels import emulator; emulator.capture().__enter__()")
    assert "EmulatorError: capture() needs a running emulator" in process.stderr
    assert "the emulator is not running" in process.stderr

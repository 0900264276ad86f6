"""The wheel, installed into a fresh environment and used from outside of the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def call(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, run without this checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    run = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that has the wheel, and sees the dependencies installed here."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def test_the_wheel_holds_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tpu_kernels"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    specs = {str(path.relative_to(ROOT / "kernel_specs")) for path in (ROOT / "kernel_specs").rglob("*.yaml")}
    prefix = "tpu_kernels/_bundled_specs/"
    assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == specs
    assert wheel.stat().st_size < 8 * 2**20


def test_the_installed_package_finds_its_specs_and_kernels(python: Path, tmp_path: Path) -> None:
    code = """if True:
        import json, tpu_kernels
        registry = tpu_kernels.load_registry()
        print(json.dumps({
            "package": tpu_kernels.__file__,
            "specs": {spec.name: [str(spec.file), str(spec.kernel_folder)] for spec in registry},
        }))"""
    found = json.loads(call(python, "-c", code, cwd=tmp_path))
    package = Path(found["package"]).parent
    assert package.is_relative_to(python.parents[1])
    assert found["specs"]
    for file, folder in found["specs"].values():
        assert Path(file).is_relative_to(package / "_bundled_specs")
        assert Path(folder).is_relative_to(package / "hub_kernels")
        for part in ("build.toml", "CARD.md", "torch-ext", "build/torch-tpu/metadata.json"):
            assert (Path(folder) / part).exists()


def test_the_installed_command_works(python: Path, tmp_path: Path) -> None:
    command = python.with_name("tpu-kernels")
    assert "emulate" in call(command, "--help", cwd=tmp_path)
    assert call(command, "--version", cwd=tmp_path).startswith("tpu-kernels ")
    assert "static-attention" in call(command, "specs", cwd=tmp_path)


def test_every_bundled_kernel_loads_from_the_installed_package(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(
        "from tpu_kernels import load_registry\n"
        "from tpu_kernels.runtime.hub import load_kernel\n"
        "for spec in load_registry():\n"
        "    print(spec.name, load_kernel(spec).module.__file__)\n"
    )
    lines = call(python.with_name("tpu-kernels"), "emulate", script, cwd=tmp_path).splitlines()
    assert any(line.startswith("attention/static-attention ") for line in lines)
    for line in lines:
        assert Path(line.split()[1]).is_relative_to(python.parents[1])

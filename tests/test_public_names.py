from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tpu_kernels

ROOT = Path(__file__).parents[1]


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after running `code`."""
    code += (
        "\nimport sys\nprint(*[n for n in ('torch', 'jax', 'transformers', 'kernels', 'pydantic') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import tpu_kernels; from tpu_kernels import SpecError") == set()


def test_specs_registry_and_command_line_load_neither_torch_nor_jax() -> None:
    assert loaded_after("from tpu_kernels import KernelSpec, load_registry; load_registry()") == {"pydantic"}
    assert loaded_after("import tpu_kernels.cli.main") == set()


def test_every_public_name_exists() -> None:
    for name in tpu_kernels.__all__:
        assert getattr(tpu_kernels, name) is not None
    assert set(tpu_kernels._LAZY) <= set(tpu_kernels.__all__)
    assert dir(tpu_kernels) == sorted(tpu_kernels.__all__)


def test_every_error_is_public() -> None:
    from tpu_kernels import errors

    found = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert found <= set(tpu_kernels.__all__)
    drawn = (errors.__doc__ or "").split()
    assert found <= set(drawn)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'enable_gpu_kernels'"):
        tpu_kernels.enable_gpu_kernels  # noqa: B018

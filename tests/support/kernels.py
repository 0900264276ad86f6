"""Copies of the bundled kernel repository that a test may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpu_kernels import KernelSpec, load_registry
from tpu_kernels.lab.build_variant import build_variant
from tpu_kernels.specs import PathSource

BUNDLED = "attention/static-attention"


def copy_of_bundled(folder: Path) -> Path:
    """The bundled repository, copied to `folder`/kernel."""
    bundled = load_registry().get(BUNDLED).kernel_folder
    assert bundled is not None
    return Path(shutil.copytree(bundled, folder / "kernel", ignore=shutil.ignore_patterns("__pycache__")))


def edit(repository: Path, name: str, old: str, new: str) -> None:
    """Change a source file of the repository, where `old` must stand, and build it anew."""
    path = repository / "torch-ext" / "static_attention" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    build_variant(repository)


def spoiled_spec(repository: Path) -> KernelSpec:
    """The bundled spec under another name, with the repository as its source."""
    spec = load_registry().get(BUNDLED)
    return spec.model_copy(update={"name": "attention/spoiled", "source": PathSource(path=str(repository))})

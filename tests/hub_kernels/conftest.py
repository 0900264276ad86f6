"""Shared by the tests of bundled Hub kernels; they call JAX directly, on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tpu_kernels.lab.interpret import hlo_interpreted
from tpu_kernels.lab.jax_source import STATIC_ATTENTION, load_source


@pytest.fixture(scope="session")
def source() -> ModuleType:
    """The JAX file of static-attention, by itself."""
    return load_source(STATIC_ATTENTION)


@pytest.fixture(scope="session")
def interpreted(source: ModuleType) -> Callable[..., torch.Tensor]:
    """Its function in the HLO interpreter; blocks are short, so that every probe has several."""
    return hlo_interpreted(source.attend, block_k=128)


@pytest.fixture
def mutant(tmp_path: Path) -> Callable[[dict[str, str]], ModuleType]:
    """Loads the JAX file with some of its text replaced; a text that is not there once is an error of the test."""

    def make(changes: dict[str, str]) -> ModuleType:
        text = STATIC_ATTENTION.read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, f"{text.count(old)} times in kernel.py: {old}"
            text = text.replace(old, new)
        shutil.copy(STATIC_ATTENTION.with_name("blocks.py"), tmp_path)
        path = tmp_path / "kernel.py"
        path.write_text(text)
        return load_source(path)

    return make

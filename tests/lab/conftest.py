from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab import products
from tpu_kernels import KernelSpec

OP = "mlp"


@pytest.fixture
def product_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelSpec:
    """The spec of a kernel of products, whose cases stand in the place of an op's."""
    monkeypatch.setitem(sys.modules, f"tpu_kernels.ops.{OP}.cases", products.module(OP))
    return products.spec(tmp_path / "products", OP)

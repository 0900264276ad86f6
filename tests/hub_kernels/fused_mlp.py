"""Shared by the tests of fused-mlp."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from tpu_kernels.lab.interpret import hlo_interpreted
from tpu_kernels.lab.jax_source import HUB_KERNELS

REPO = HUB_KERNELS / "fused-mlp"
SOURCE = REPO / "torch-ext" / "fused_mlp" / "kernel.py"
FUNCTIONS = ("gated_mlp", "mlp")


def interpreted(
    source: ModuleType, run: Callable[..., Any] = hlo_interpreted, **tuning: Any
) -> dict[str, Callable[..., torch.Tensor]]:
    """Both functions of the JAX file on CPU tensors, by one of the interpreters."""
    return {name: run(getattr(source, name), **tuning) for name in FUNCTIONS}

"""Implementations of the emulator's own for ops of torch on the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def override(op: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Let `function` run where `aten::op` is called with tensors of the TPU; returns what takes it back.

    It lasts as long as the answer is kept.
    """
    import torch

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(op, function, "PrivateUse1", allow_override=True)
    remove: Callable[[], None] = library._destroy
    return remove

"""Numbers read from the device, with the interpreter's lock let go while the device is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpu_kernels.emulator.overrides import override


def install() -> None:
    """Give `aten::_local_scalar_dense` an implementation that waits without the lock.

    Some functions of torch read a tensor of no dimensions while they hold the lock of the interpreter: an index
    (`x[tensor]`), a number among an op's arguments (`torch.full((2,), tensor)`). torch_tpu then waits for programs
    that its own threads compile, and the emulator's part of a compilation is Python and needs the lock.
    """
    import torch

    own = torch.library.get_kernel("aten::_local_scalar_dense", "PrivateUse1")
    device_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def read(tensor: torch.Tensor) -> Any:
        try:
            return tensor.to("cpu").item()  # a method called from Python lets go of the lock
        except RuntimeError:
            # While torch_tpu traces a graph its tensors hold nothing, and it knows what to do with them.
            return own.call_boxed(device_keys, tensor)

    _KEPT.append(override("_local_scalar_dense", read))


_KEPT: list[Callable[[], None]] = []
"""An implementation lives as long as the library object behind it."""

"""The one place of the host package that touches torch_tpu: its device, its memory, what transformers finds of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tpu_kernels import emulator
from tpu_kernels.chips import ChipInfo, chip
from tpu_kernels.errors import StackError, explain
from tpu_kernels.runtime.host_constants import fold_host_constants

CHIP_VARIABLE = "TPU_KERNELS_CHIP"
_EMULATED_CHIP = "v5e"
_NAMES = (
    ("v6e", ("v6e", "v6 lite", "v6lite")),
    ("v5e", ("v5e", "v5 lite", "v5lite")),
    ("v5p", ("v5p", "v5")),
    ("tpu7x", ("tpu7x", "v7", "7x")),
    ("v4", ("v4",)),
)


def announce_backend() -> None:
    """Tell the `kernels` library that this torch runs on TPUs.

    It asks `hasattr(torch.backends, "tpu")`, which torch_tpu does not set; without it every `torch-tpu` build of a
    kernel is refused as built for another backend.
    """
    if not hasattr(torch.backends, "tpu") and hasattr(torch, "tpu"):
        torch.backends.tpu = torch.tpu  # type: ignore[attr-defined]


def generation_of(device_name: str) -> str | None:
    """TPU generation from the name that the device reports, or None for a name not known."""
    name = device_name.lower()
    return next((chip_name for chip_name, parts in _NAMES if any(part in name for part in parts)), None)


def current_chip() -> ChipInfo | None:
    """The chip that programs run on: named by TPU_KERNELS_CHIP, else asked of the device; the emulator plays a v5e.

    None where the device's name is not known. Raises StackError for an unknown name in TPU_KERNELS_CHIP.
    """
    named = os.environ.get(CHIP_VARIABLE)
    if named:
        try:
            return chip(named)
        except (KeyError, ValueError) as error:
            raise StackError(
                explain(
                    f"{CHIP_VARIABLE} names a chip that is not known.",
                    got=named,
                    next_step=f"unset it or choose one: {error}",
                )
            ) from error
    if emulator.is_active():
        return chip(_EMULATED_CHIP)
    if not torch.accelerator.is_available():
        return None
    generation = generation_of(str(torch.tpu.get_device_name()))  # type: ignore[attr-defined]
    return chip(generation) if generation else None


def device_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model's parameters and buffers on its TPU; shared tensors count once."""
    seen: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "tpu":
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            seen[id(tensor)] = local.numel() * local.element_size()
    return sum(seen.values())


def spmd_safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its collectives left inside the compiled graph: torch_tpu otherwise cuts it at each of them, as
    it may not assume that all ranks run the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*spmd_safe is experimental")
        safe: Callable[..., Any] = torch.tpu.distributed.spmd_safe(function)  # type: ignore[attr-defined]
    return safe


def compile_for_tpu(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """torch_tpu's backend of torch.compile for the graphs of an enabled model, with its host constants folded."""
    fold_host_constants(module)
    return torch._dynamo.lookup_backend("tpu")(module, inputs)

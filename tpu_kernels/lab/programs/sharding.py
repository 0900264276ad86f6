"""A model divided over a tensor-parallel group as `from_pretrained` would divide it, without weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from tpu_kernels.apply.tensor_parallel import tp_config


def divide(model: PreTrainedModel, tp_size: int) -> None:
    """Cut the parameters of `model`, which is on `meta`, for this process's rank, and hook its forwards.

    Needs a default process group of `tp_size` ranks. Raises what `tp_config` raises for sizes that cannot be divided.
    """
    config = tp_config(model.config, tp_size)
    kind: Any = type(model)
    config, _, mesh = kind.prepare_distribute_model(config)
    kind.maybe_distribute_model(model, config, mesh)


def to_empty(model: PreTrainedModel, device: str) -> None:
    """Give every parameter and buffer memory without contents on `device`; of a divided one, this rank's part."""
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    if tensor not in moved:
                        moved[tensor] = _empty(tensor, device)
                    tensors[name] = moved[tensor]
    model.tie_weights()


def _empty(tensor: torch.Tensor, device: str) -> torch.Tensor:
    data = tensor.detach()
    if isinstance(data, DTensor):
        local = torch.empty_like(data.to_local(), device=device)
        data = DTensor.from_local(
            local, data.device_mesh, data.placements, run_check=False, shape=data.shape, stride=data.stride()
        )
    else:
        data = torch.empty_like(data, device=device)
    return nn.Parameter(data, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data

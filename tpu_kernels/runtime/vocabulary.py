"""An embedding whose vocabulary is divided over the ranks, without the rank's number in the graph.

transformers' own asks for the rows of its shard with the shard's first row as a constant, so every rank would compile
a graph of its own, and a graph that holds its collectives (`spmd_safe`) must be the same on all ranks. Here the first
row is a tensor.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers.distributed.parallel_utils import _use_local_dtensor_params

from tpu_kernels.plan.layers import OURS
from tpu_kernels.plan.sharded import style_of

FIRST_ROW: Final = "_tpu_kernels_first_row"
"""Of such a module: the first row of the rank's shard, int64 on the device."""
_STYLED: Final = "_tpu_kernels_styled_forward"


def is_divided_vocabulary(module: torch.nn.Module) -> bool:
    """Whether transformers gave each rank an equal run of an embedding's rows."""
    style = style_of(module)
    if not isinstance(module, torch.nn.Embedding) or style is None or style.name != "EmbeddingParallel":
        return False
    return bool(style.style.shard_dim == 0 and module.num_embeddings % style.mesh.size() == 0)


def attributes_of(module: Any) -> dict[str, Any]:
    """What a divided embedding needs besides its forward."""
    style = style_of(module)
    assert style is not None
    first = style.mesh.get_local_rank() * module.weight.to_local().shape[0]
    return {
        FIRST_ROW: torch.tensor(first, dtype=torch.int64, device=module.weight.device),
        _STYLED: vars(module)["forward"],
    }


def vocabulary_forward(module: Any, input_ids: torch.Tensor) -> torch.Tensor:
    """The embedding's vectors `[..., hidden]` of `input_ids` `[...]`, the same on every rank."""
    if torch.is_grad_enabled() and module.weight.requires_grad:
        styled: torch.Tensor = vars(module)[_STYLED](input_ids)
        return styled
    first: torch.Tensor = getattr(module, FIRST_ROW)
    rows = input_ids.to(first.device) - first
    mine = (rows >= 0) & (rows < module.weight.to_local().shape[0])
    with _use_local_dtensor_params(module):
        vectors = type(module).forward(module, torch.where(mine, rows, 0))
    vectors = torch.where(mine.unsqueeze(-1), vectors, 0)
    torch.distributed.all_reduce(vectors, group=module.weight.device_mesh.get_group())
    return vectors


setattr(vocabulary_forward, OURS, True)

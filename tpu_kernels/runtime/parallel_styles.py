"""The parallel styles that transformers' table lacks: what a model that is loaded with them does.

`plan/tp/styles.py` names them; `register_styles` must have been called, in each process, before a model is loaded
with a `DistributedConfig` that names one. `tpu_kernels.tp_config` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard, distribute_tensor
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES, _use_local_dtensor_params
from transformers.distributed.tensor_parallel import MoeExpertsParallel, TensorParallelLayer

from tpu_kernels.errors import TensorParallelError, explain
from tpu_kernels.plan.tp.styles import Heads, KeyValueHeads, SharedBias, our_style

OUTPUT_BIAS = "down_proj_bias"
"""The parameter of experts `[experts, hidden]` that is added after the last projection."""


def register_styles(names: Iterable[str]) -> None:
    """Make the styles of ours among `names` known to transformers; those of transformers are left alone."""
    for name in names:
        match our_style(name):
            case KeyValueHeads(heads):
                ALL_PARALLEL_STYLES.register(name, KeyValueHeadsParallel(heads))
            case Heads(query_heads):
                ALL_PARALLEL_STYLES.register(name, HeadsParallel(query_heads))
            case SharedBias():
                ALL_PARALLEL_STYLES.register(name, SharedBiasParallel())


def _shard(module: torch.nn.Module, name: str, mesh: DeviceMesh, placements: list[Placement]) -> None:
    """Put a DTensor in the place of a parameter; loading then reads this rank's part alone."""
    parameter = module._parameters.get(name)
    if parameter is not None:
        sharded = distribute_tensor(parameter, mesh, placements, src_data_rank=None)
        module._parameters[name] = torch.nn.Parameter(sharded, requires_grad=parameter.requires_grad)


class KeyValueHeadsParallel(TensorParallelLayer):  # type: ignore[misc]
    """Weight `[heads * size, hidden]` and bias of a key or value projection: of `tp` ranks in order, each run of
    `tp / heads` holds one head. For inference: a gradient would have to be summed over such a run."""

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def shard_param(self, module: torch.nn.Module, param: str, mesh: DeviceMesh) -> None:
        _shard(module, param, shared_mesh(mesh, self.heads), [Shard(0)])
        # Transformers' mark of a projection that computes on local tensors in every mode.
        vars(module)["_hf_quantized_needs_local_tp"] = True


def shared_mesh(mesh: DeviceMesh, pieces: int) -> DeviceMesh:
    """The mesh over which a tensor is cut into fewer `pieces` than a one-dimensional mesh has ranks.

    It holds the first rank of each run of ranks that keep one piece, and every rank of the run is seen as that one.
    It has no process group: nothing is ever sent over it.
    """
    if mesh.size() % pieces:
        raise TensorParallelError(
            explain(
                "Key-value heads cannot be shared so.",
                needs=f"a number of ranks that {pieces} heads divide",
                got=f"{mesh.size()} ranks",
                next_step="make the DistributedConfig with tpu_kernels.tp_config(model, tp_size) of this tp_size.",
            )
        )
    run = mesh.size() // pieces
    firsts, piece = mesh.mesh[::run], mesh.get_local_rank() // run
    shared = DeviceMesh(
        mesh.device_type,
        firsts,
        mesh_dim_names=("heads",),
        _init_backend=False,
        _rank=int(firsts[piece]),
    )
    # Of a group torch would ask for the rank; loading wants no more of it than this number.
    shared.get_local_rank = partial(int, piece)  # type: ignore[method-assign]
    shared._dim_group_names = []  # tracing a graph reads it
    return shared


class HeadsParallel(TensorParallelLayer):  # type: ignore[misc]
    """An attention module whose own parameters go with the query heads, or whose ranks share key-value heads."""

    def __init__(self, query_heads: int) -> None:
        self.query_heads = query_heads

    def shard_param(self, module: torch.nn.Module, param: str, mesh: DeviceMesh) -> None:
        _shard(module, param, mesh, [Shard(0)])

    def install_forward(self, module: Any, mesh: DeviceMesh) -> torch.nn.Module:
        groups = getattr(module, "num_key_value_groups", None)
        if isinstance(groups, int):
            local_kv = max(self.query_heads // groups // mesh.size(), 1)
            module.num_key_value_groups = self.query_heads // mesh.size() // local_kv
        if any(True for _ in module.parameters(recurse=False)):
            module.forward = _on_local_parameters(module)
        installed: torch.nn.Module = module
        return installed


def _on_local_parameters(module: torch.nn.Module) -> Callable[..., Any]:
    """The module's forward, in which its own parameters are this rank's parts of them. Seen by tpu_kernels as a forward
    that may not be left out, unlike those of styles whose work is done around a module."""
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _use_local_dtensor_params(module):
            return original(*args, **kwargs)

    return forward


class SharedBiasParallel(MoeExpertsParallel):  # type: ignore[misc]
    """Experts whose ranks' parts are summed: each rank adds 1 / `tp` of the bias that no rank holds in part."""

    @contextlib.contextmanager
    def context_around_forward(self, module: torch.nn.Module, mesh: DeviceMesh) -> Iterator[None]:
        with super().context_around_forward(module, mesh):
            bias = module._parameters[OUTPUT_BIAS]
            module._parameters[OUTPUT_BIAS] = bias / mesh.size() if bias is not None else None  # type: ignore[assignment]
            try:
                yield
            finally:
                module._parameters[OUTPUT_BIAS] = bias

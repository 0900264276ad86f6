"""The shapes that transformers itself gives the parameters of divided models, in a process group that is none.

    python shapes_of_transformers.py < REQUEST    with REQUEST a list of [name, tp_size, rank]

Prints {"name tp_size rank": {parameter: local shape}}. Models are on the meta device and have two layers.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.tensor_parallel import apply_tensor_parallelism, resolve_parallel_plans

from tests.support.tensor_parallel import real_config
from tpu_kernels import tp_config
from tpu_kernels.plan import resolve_model


def shapes(name: str, size: int, rank: int) -> dict[str, list[int]]:
    config = real_config(name, layers=2)
    model = resolve_model(config)
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
        plan, _ = resolve_parallel_plans(model, tp_config(config, size))
        apply_tensor_parallelism(model, mesh, plan)
        return {
            path: list((each.to_local() if isinstance(each, DTensor) else each).shape)
            for path, each in model.named_parameters(remove_duplicate=False)
        }
    finally:
        dist.destroy_process_group()


with torch.no_grad():
    print(json.dumps({f"{name} {size} {rank}": shapes(name, size, rank) for name, size, rank in json.load(sys.stdin)}))

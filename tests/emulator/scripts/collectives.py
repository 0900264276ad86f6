"""One rank of tests/emulator/test_collectives.py: each collective on tensors of the device, eager and compiled."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

dist.init_process_group("tpu_dist")
rank, size = dist.get_rank(), dist.get_world_size()


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Counts up from 100 * rank."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) + 100 * rank).to(dtype).reshape(shape).to("tpu")


def every(*shape: int) -> list[torch.Tensor]:
    count = torch.Size(shape).numel()
    return [(torch.arange(count, dtype=torch.float32) + 100 * other).reshape(shape) for other in range(size)]


def check(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu().float(), expected.float(), msg=lambda text: f"{name}, rank {rank}: {text}")


total = sum(every(2, 3))
for dtype in (torch.float32, torch.bfloat16):
    x = mine(2, 3, dtype=dtype)
    dist.all_reduce(x)
    check(f"all_reduce {dtype}", x, total)
for op, expected in (
    (dist.ReduceOp.MAX, every(2, 3)[-1]),
    (dist.ReduceOp.MIN, every(2, 3)[0]),
    (dist.ReduceOp.AVG, total / size),
):
    x = mine(2, 3)
    dist.all_reduce(x, op=op)
    check(f"all_reduce {op}", x, expected)

x = mine(4)
dist.broadcast(x, src=size - 1)
check("broadcast", x, every(4)[-1])

parts = [torch.empty(2, 3, device="tpu") for _ in range(size)]
dist.all_gather(parts, mine(2, 3))
check("all_gather", torch.stack([part.cpu() for part in parts]), torch.stack(every(2, 3)))

whole = torch.empty(2 * size, 3, device="tpu")
dist.all_gather_into_tensor(whole, mine(2, 3))
check("all_gather_into_tensor", whole, torch.cat(every(2, 3)))

part = torch.empty(2, 3, device="tpu")
dist.reduce_scatter_tensor(part, mine(2 * size, 3))
check("reduce_scatter_tensor", part, sum(every(2 * size, 3))[2 * rank : 2 * rank + 2])

got = torch.empty(size, device="tpu")
dist.all_to_all_single(got, mine(size))
check("all_to_all_single", got, torch.stack(every(size))[:, rank])

objects: list[object] = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": other} for other in range(size)], objects
dist.barrier()

mesh = init_device_mesh("tpu", (size,))
sharded = DTensor.from_local(mine(2, 3), mesh, [Shard(0)], run_check=False)
check("DTensor", sharded.redistribute(placements=[Replicate()]).to_local(), torch.cat(every(2, 3)))

pairs = [dist.new_group([rank_]) for rank_ in range(size)]
x = mine(3)
dist.all_reduce(x, group=pairs[rank])
check("a group of one", x, every(3)[rank])


def between(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    y = functional.all_gather_tensor(y + rank, 0, dist.group.WORLD)
    return y * 3


expected = torch.cat([2 * total + other for other in range(size)]) * 3
check("compiled", torch.compile(between, backend="tpu", dynamic=False)(mine(2, 3)), expected)
safe = torch.tpu.distributed.spmd_safe(between)
check("compiled and spmd_safe", torch.compile(safe, backend="tpu", dynamic=False)(mine(2, 3)), expected)
check("eager and spmd_safe", safe(mine(2, 3)), expected)
print(f"rank {rank} of {size}: all equal", flush=True)

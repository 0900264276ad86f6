"""Collectives between emulated chips: one process per chip, gloo in the place of the interconnect.

XLA's CPU plugin knows one process only, so a collective leaves the device: its operands are copied to the host,
reduced or exchanged by gloo, and copied back. torch_tpu cuts a compiled graph at its collectives by itself, except
where `torch.tpu.distributed.spmd_safe` forbids it; here it always does, and what is cut out runs eagerly.

Imported only once torch is loaded on the emulated device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d

# Their stubs ask for lists and option objects at every place where torch itself passes other things.
ProcessGroup: Any = distributed_c10d.ProcessGroup
Work = distributed_c10d.Work

BACKENDS = ("tpu_dist", "tpu")

Tensors = Sequence[torch.Tensor]


def install() -> None:
    """Let `init_process_group("tpu_dist")` make groups of emulated chips, and compiled graphs use them."""
    for name in BACKENDS:
        dist.Backend.register_backend(name, EmulatedProcessGroup, devices=["tpu"])
    _cut_graphs_at_collectives()


class EmulatedProcessGroup(ProcessGroup):  # type: ignore[misc]
    """What torch_tpu's `tpu_dist` is on TPUs: collectives on tensors of the device (and, as gloo's, of the CPU).

    Tensors without data, of a forward that is only traced, stay on their own, as in torch's own groups.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo: Any = distributed_c10d.ProcessGroupGloo(store, rank, size, timeout)
        self._name = ""

    def getBackendName(self) -> str:
        return "tpu_dist"

    # c10d finds a group by this name when a compiled graph or a functional collective runs.
    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: Tensors, options: Any = None) -> Work:
        options = options or dist.AllreduceOptions()
        with _summed_for_average(self, options) as average:
            return self._in_place(tensors, lambda host: self._gloo.allreduce(host, options), average)

    def allreduce_coalesced(self, tensors: Tensors, options: Any = None) -> Work:
        single = dist.AllreduceOptions()
        if options is not None:
            single.reduceOp = options.reduceOp
        for tensor in tensors:
            self.allreduce([tensor], single)
        return _done(list(tensors))

    def broadcast(self, tensors: Tensors, options: Any) -> Work:
        return self._in_place(tensors, lambda host: self._gloo.broadcast(host, options))

    def reduce(self, tensors: Tensors, options: Any) -> Work:
        return self._in_place(tensors, lambda host: self._gloo.reduce(host, options))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None) -> Work:
        for gathered, tensor in zip(outputs, inputs, strict=True):
            for target, value in zip(gathered, self._gathered(tensor), strict=True):
                target.copy_(value)
        return _done([list(gathered) for gathered in outputs])

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, options: Any = None) -> Work:
        output.copy_(torch.cat([part.reshape(-1) for part in self._gathered(tensor)]).view(output.shape))
        return _done([output])

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return _done(list(outputs))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> Work:
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_part(output, torch.stack([part.cpu() for part in parts]), options.reduceOp)
        return _done(list(outputs))

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, options: Any) -> Work:
        parts = tensor.cpu().reshape(self.size(), *output.shape)
        self._reduce_part(output, parts, options.reduceOp)
        return _done([output])

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, tensor, options)
        return _done(list(outputs))

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: Any, input_sizes: Any, options: Any = None
    ) -> Work:
        host, received = tensor.cpu().contiguous(), torch.empty(output.shape, dtype=output.dtype)
        self._gloo.alltoall_base(received, host, output_sizes, input_sizes, options or dist.AllToAllOptions()).wait()
        output.copy_(received)
        return _done([output])

    def barrier(self, opts: Any = None) -> Work:
        work: Work = self._gloo.barrier(opts or dist.BarrierOptions())
        work.wait()
        return work

    def send(self, tensors: Tensors, target: int, tag: int) -> Work:
        work: Work = self._gloo.send([tensor.cpu().contiguous() for tensor in tensors], target, tag)
        work.wait()
        return work

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._in_place(tensors, lambda host: self._gloo.recv(host, source, tag))

    # torch has two names for each of these, of which the second is the older.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _in_place(self, tensors: Tensors, collective: Callable[[list[torch.Tensor]], Work], divide_by: int = 1) -> Work:
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return _done(list(tensors))
        host = [tensor.detach().cpu().contiguous().clone() for tensor in tensors]
        collective(host).wait()
        for tensor, value in zip(tensors, host, strict=True):
            tensor.detach().copy_(value / divide_by if divide_by > 1 else value)
        return _done(list(tensors))

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        if isinstance(tensor, FakeTensor):
            return [tensor] * self.size()
        host = tensor.detach().cpu().contiguous()
        parts = [torch.empty_like(host) for _ in range(self.size())]
        self._gloo.allgather([parts], [host]).wait()
        return parts

    def _reduce_part(self, output: torch.Tensor, parts: torch.Tensor, operation: Any) -> None:
        """Reduce `parts` [ranks, ...] over the ranks and keep this rank's."""
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self.allreduce([parts], options)
        output.copy_(parts[self.rank()])


class _summed_for_average:
    """gloo has no average: sum, and tell by what to divide."""

    def __init__(self, group: EmulatedProcessGroup, options: Any) -> None:
        self._options, self._size, self._given = options, int(group.size()), options.reduceOp

    def __enter__(self) -> int:
        if self._given != dist.ReduceOp.AVG:
            return 1
        self._options.reduceOp = dist.ReduceOp.SUM
        return self._size

    def __exit__(self, *_: object) -> None:
        self._options.reduceOp = self._given


def _done(result: Any) -> Work:
    future: Any = torch.futures.Future()
    future.set_result(result)
    make: Any = torch._C._distributed_c10d._create_work_from_future  # type: ignore[attr-defined]
    work: Work = make(future)
    return work


def _cut_graphs_at_collectives() -> None:
    from torch_tpu._internal.compile import split_compiler
    from torch_tpu._internal.distributed import collective_ops, spmd_util

    def has_collective(graph: torch.fx.Graph) -> bool:
        return any(node.op == "call_function" and collective_ops.is_collective_op(node.target) for node in graph.nodes)

    compile_graph = split_compiler.SplitCompiler._compile_graph
    compile_submod = split_compiler._SubmodCompiler.compile_submod

    def cut(self: Any, graph_module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        for node in graph_module.graph.nodes:
            node.meta.get("custom", {}).pop(spmd_util.SPMD_SAFE_METADATA_KEY, None)
        return compile_graph(self, graph_module, *args, **kwargs)

    def compiled_unless_collective(
        self: Any, module: torch.fx.GraphModule, args: Any, kwargs: Any, submod_name: str | None = None
    ) -> Any:
        if has_collective(module.graph):
            return module
        return compile_submod(self, module, args, kwargs, submod_name=submod_name)

    split_compiler.SplitCompiler._compile_graph = cut
    split_compiler._SubmodCompiler.compile_submod = compiled_unless_collective
    # Whether all ranks compile the same is asked through torch_tpu's own runtime, which is not there. "No" only
    # means that the graph is cut.
    split_compiler._submit_handshake = lambda *args, **kwargs: False

"""Faults of torch_tpu itself that end the process: here they are errors that say what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpu_kernels.emulator.overrides import override
from tpu_kernels.errors import CompileError, explain

_DEVICE_COPIES = ("_to_copy", "copy", "copy_", "device_put", "lift_fresh_copy")
_REMOVERS: list[Callable[[], None]] = []


def install() -> None:
    """Stand in front of what would make torch_tpu abort."""
    _REMOVERS.extend((_guard_graphs(), _guard_index_reduce()))


def remove() -> None:
    """Leave torch_tpu as it came: the process ends where it meets one of its faults."""
    while _REMOVERS:
        _REMOVERS.pop()()


def _guard_graphs() -> Callable[[], None]:
    from torch_tpu._internal.export import export

    interpreter = export.EagerLikeFxInterpreter
    original = interpreter.run_node

    def run_node(self: Any, node: Any) -> Any:
        result = original(self, node)
        if node.op in ("call_function", "output"):
            _check_host_tensors(self, node, result)
        return result

    interpreter.run_node = run_node
    return lambda: setattr(interpreter, "run_node", original)


def _guard_index_reduce() -> Callable[[], None]:
    """torch_tpu's index_reduce fails a CHECK unless the tensor has one dimension, as its index has."""
    import torch

    def index_reduce(
        tensor: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        source: torch.Tensor,
        reduce: str,
        *,
        include_self: bool = True,
        out: torch.Tensor,
    ) -> torch.Tensor:
        if tensor.ndim != 1:
            raise CompileError(
                explain(
                    "torch_tpu cannot do index_reduce on a tensor of more than one dimension.",
                    got=f"a tensor of shape {tuple(tensor.shape)}",
                    next_step="use scatter_reduce, with an index of the shape of the source. On a real TPU,\n"
                    "torch_tpu 0.2.0 ends the process here.",
                )
            )
        return out.copy_(tensor.scatter_reduce(dim, index, source, reduce, include_self=include_self))

    return override("index_reduce.out", index_reduce)


def _check_host_tensors(interpreter: Any, node: Any, result: Any) -> None:
    """Raise CompileError if a tensor that the graph made on the CPU enters the TPU part of the graph.

    torch_tpu records it as an argument of the program, does not find it among the arguments of the
    graph, and aborts (compiled_mode.cc: "identified an argument that was not provided"). It bears a
    CPU tensor of no dimensions as an operand, where it becomes a number.
    """
    import torch
    from torch.utils import _pytree

    def on(device: str, values: Any) -> list[Any]:
        leaves = [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return [leaf for leaf in leaves if leaf.device.type == device]

    is_output = node.op == "output"
    if not is_output and not on("tpu", result):
        return
    name = "the result" if is_output else getattr(node.target, "_opname", str(node.target))
    for source in node.all_input_nodes:
        if source.op != "call_function":
            continue
        for tensor in on("cpu", interpreter.env.get(source)):
            if is_output or name in _DEVICE_COPIES or tensor.ndim > 0:
                raise CompileError(_host_tensor_message(source, name, tensor, node.stack_trace))


def _host_tensor_message(source: Any, user: str, tensor: Any, trace: str | None) -> str:
    maker = getattr(source.target, "_opname", str(source.target))
    where = (trace or "").strip().splitlines()[-2:]
    return explain(
        "torch_tpu cannot compile a graph in which a tensor is made on the CPU and used on the TPU.",
        needs="every tensor that the compiled function makes to be made on the device",
        got="\n".join([f"a {tuple(tensor.shape)} {tensor.dtype} CPU tensor of `{maker}` in `{user}`", *where]),
        next_step="make it on the device, for instance torch.arange(..., device=x.device), or make it before\n"
        "the compiled function is called. On a real TPU, torch_tpu 0.2.0 ends the process here.",
    )

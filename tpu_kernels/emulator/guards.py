"""Faults of torch_tpu itself that end the process: here they are errors that say what happened."""

from __future__ import annotations

from typing import Any

from tpu_kernels.errors import CompileError, explain

_UNGUARDED: list[Any] = []
_DEVICE_COPIES = ("_to_copy", "copy", "copy_", "device_put", "lift_fresh_copy")


def install() -> None:
    """Check every graph that torch_tpu traces for what would make it abort."""
    from torch_tpu._internal.export import export

    interpreter = export.EagerLikeFxInterpreter
    original = interpreter.run_node

    def run_node(self: Any, node: Any) -> Any:
        result = original(self, node)
        if node.op in ("call_function", "output"):
            _check_host_tensors(self, node, result)
        return result

    interpreter.run_node = run_node
    _UNGUARDED.append(original)


def remove() -> None:
    """Leave torch_tpu as it came: the process ends where it meets one of its faults."""
    from torch_tpu._internal.export import export

    if _UNGUARDED:
        export.EagerLikeFxInterpreter.run_node = _UNGUARDED.pop()


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

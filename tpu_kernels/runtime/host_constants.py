"""Constants that a traced graph makes on the CPU, worked out once and put on the TPU.

torch_tpu 0.2.0 ends the process where a graph makes a tensor on the CPU and uses it on the TPU (docs/known-faults.md).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree

LARGEST: Final = 65536
"""Elements of the largest constant that is folded: it becomes a literal of the program."""

_RANDOM: Final = ("rand", "bernoulli", "multinomial", "normal", "poisson", "dropout", "rrelu")
_IN_PLACE: Final = {"setitem", *(name for name in dir(operator) if name[0] == "i" and f"__{name}__" in dir(operator))}


def _tensors(node: Node) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(node.meta.get("example_value"))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _made_on_the_cpu(node: Node) -> bool:
    return all(tensor.device.type == "cpu" for tensor in _tensors(node))


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or any(word in _name(node) for word in _RANDOM)


def _writes_in_place(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    named = _name(node).endswith("_") or _name(node) in _IN_PLACE or "out" in node.kwargs
    return node.op.startswith("call") and (named or bool(schema is not None and schema.is_mutable))


def _constants(graph: torch.fx.Graph) -> set[Node]:
    """Nodes that compute a CPU tensor from nothing but numbers and each other.

    None at all where something on the CPU that comes from one is written in place, since it may share its memory, and
    where the graph switches autocast on, which would make other values of them.
    """
    found: set[Node] = set()
    derived: set[Node] = set()
    for node in graph.nodes:
        if "autocast" in _name(node):
            return set()
        if node.op not in ("call_function", "call_method"):
            continue
        if _writes_in_place(node) and any(source in derived for source in (node.kwargs.get("out"), *node.args[:1])):
            return set()
        if not _tensors(node) or not _made_on_the_cpu(node):
            continue
        if all(source in found for source in node.all_input_nodes) and not _is_random(node):
            found.add(node)
        if node in found or any(source in derived for source in node.all_input_nodes):
            derived.add(node)
    return found


def _boundary(constants: set[Node], graph: torch.fx.Graph) -> Iterator[Node]:
    """The constants with a user on another device."""
    for node in graph.nodes:
        if node in constants and isinstance(node.meta["example_value"], torch.Tensor):
            users = [user for user in node.users if user not in constants]
            if any(tensor.device.type == "tpu" for user in users for tensor in _tensors(user)):
                yield node


def fold_host_constants(module: GraphModule) -> int:
    """Replace CPU constants of a Dynamo graph that its TPU part uses by tensors on the TPU; returns how many.

    A constant is what the graph computes from numbers alone. What depends on an input, is random, or is returned as a
    CPU tensor stays as it is.
    """
    graph = module.graph
    values: dict[Node, Any] = {}
    constants = _constants(graph)
    folded = [node for node in _boundary(constants, graph) if 0 < _size(node) <= LARGEST]
    for node in folded:
        value = _value(node, values)
        example = node.meta["example_value"]
        with graph.inserting_before(node):
            # Python data is what torch_tpu takes as a constant.
            literal = graph.call_function(torch.tensor, (value.tolist(),), {"dtype": value.dtype})
            constant = graph.call_method("to", (literal, "tpu"))
        literal.meta["example_value"], constant.meta["example_value"] = example, example.to("tpu")
        for user in list(node.users):
            if any(tensor.device.type == "tpu" for tensor in _tensors(user)):
                user.replace_input_with(node, constant)
    if folded:
        # Not eliminate_dead_code: it takes writes in place, whose result nobody uses, for dead.
        for node in reversed(graph.nodes):
            if node in constants and not node.users:
                graph.erase_node(node)
        module.recompile()
    return len(folded)


def _size(node: Node) -> int:
    return int(node.meta["example_value"].numel())


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """The value of a constant node, computed on the CPU."""
    if node not in values:

        def known(source: Node) -> Any:
            return _value(source, values)

        arguments, keywords = map_arg(node.args, known), map_arg(node.kwargs, known)
        if node.op == "call_method":
            owner, *rest = arguments
            values[node] = getattr(owner, str(node.target))(*rest, **keywords)
        else:
            function: Any = node.target
            values[node] = function(*arguments, **keywords)
    return values[node]

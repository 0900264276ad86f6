"""Whether an attention layer does otherwise under another name of the attention implementation."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from typing import Any, Final

import torch

_NAME: Final = "_attn_implementation"
_TABLE: Final = "ALL_ATTENTION_FUNCTIONS"


def depends_on_name(module: torch.nn.Module) -> bool:
    """Whether the layer's class uses the name for more than to look its function up.

    Under our name it could take another branch than under the one that it has. A comparison with names that it does
    not have comes out the same for both.
    """
    config: Any = module.config
    kind: Any = type(module)
    names = _names_compared(kind)
    return names is None or config._attn_implementation in names


@lru_cache(maxsize=1024)
def _names_compared(module_class: Any) -> frozenset[str] | None:
    """The strings with which a class compares the name, or None where it does something else with it."""
    names: set[str] = set()
    for part in module_class.__mro__:
        if part is torch.nn.Module:
            break
        found = _names_in(part)
        if found is None:
            return None
        names |= found
    return frozenset(names)


def _names_in(part: Any) -> set[str] | None:
    try:
        tree = ast.parse(inspect.getsource(part))
    except (OSError, TypeError, SyntaxError):
        return set()  # no source to judge by; that its forward uses the interface was read before
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == _NAME:
            parent = parents[node]
            if isinstance(parent, ast.Compare):
                constants = [each.value for each in ast.walk(parent) if isinstance(each, ast.Constant)]
                names |= {value for value in constants if isinstance(value, str)}
            elif not _looks_up(parent):
                return None
    return names


def _looks_up(node: ast.AST) -> bool:
    """`….get_interface(name, …)`, `get_attention_interface(…, name, …)` or `ALL_ATTENTION_FUNCTIONS[name]`."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return "interface" in called
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == _TABLE

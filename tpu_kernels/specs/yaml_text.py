"""YAML text to plain data with the line of every key. Nothing but mappings, lists and scalars is allowed.

Duplicate keys, anchors, merge keys and tags are refused: a spec means what it shows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.specs.origin import KeyPath, Origin


class _Loader(yaml.SafeLoader):
    """SafeLoader without anchors and aliases, in which `1e-5` is a number as in YAML 1.2."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise ComposerError(None, None, "anchors and aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+"),
    list("-+0123456789"),
)


def read_mapping(raw: bytes, file: Path, label: str) -> tuple[dict[str, Any], Origin]:
    """The mapping that a YAML file holds, with the origin that knows its lines.

    Raises SpecError for text that is not UTF-8, is not YAML, or holds no mapping.
    """

    def refuse(line: int, what: str, **more: str) -> SpecError:
        return SpecError(explain(f"{label}:{line}: {what}", **more), file=str(file), line=line)

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refuse(line, "the file is not UTF-8 text.", next_step="save it as UTF-8.") from None
    loader = None
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise refuse(1, "the file is empty.", next_step="start with `schema_version: 1`.")
        data = _plain(loader, node, (), lines)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = "the file holds a character that YAML forbids."
        raise refuse(line, what, got=f"U+{ord(text[error.position]):04X}") from None
    except _DuplicateKeyError as error:
        raise refuse(
            error.line,
            f"duplicate key `{error.key}`.",
            got=f"first given in line {error.first_line}",
            next_step="keep one of the two.",
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise refuse(line, "this is not valid YAML.", got=problem) from None
    except RecursionError:
        next_step = "a spec is at most four levels deep."
        raise refuse(1, "the file is nested too deeply.", next_step=next_step) from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(data, dict):
        got = type(data).__name__
        raise refuse(1, "a spec must be a mapping of keys to values.", got=got)
    return data, Origin(label, file.absolute(), lines)


class _DuplicateKeyError(Exception):
    def __init__(self, key: str, line: int, first_line: int) -> None:
        self.key, self.line, self.first_line = key, line, first_line
        super().__init__(key)


def _plain(loader: _Loader, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        _expect_tag(node, "map")
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _key(key_node)
            below = (*path, key)
            line = key_node.start_mark.line + 1
            if key in found:
                raise _DuplicateKeyError(".".join(below), line, lines[below])
            lines[below] = line
            found[key] = _plain(loader, value_node, below, lines)
        return found
    if isinstance(node, yaml.SequenceNode):
        _expect_tag(node, "seq")
        return [_plain(loader, item, (*path, str(place)), lines) for place, item in enumerate(node.value)]
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError) as error:
        raise ConstructorError(None, None, f"cannot read {node.value!r}: {error}", node.start_mark) from None


def _key(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag in (
        "tag:yaml.org,2002:str",
        "tag:yaml.org,2002:merge",
    ):
        return str(node.value)
    raise ConstructorError(None, None, f"a key must be a plain text, not {node.value!r}", node.start_mark)


def _expect_tag(node: yaml.Node, kind: str) -> None:
    if node.tag != f"tag:yaml.org,2002:{kind}":
        raise ConstructorError(None, None, f"the tag {node.tag!r} is not allowed", node.start_mark)

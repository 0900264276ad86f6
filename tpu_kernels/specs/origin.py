"""Where a spec was written, down to the line of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """The place of a spec: a YAML file with the line of every key, or Python code.

    `label` is what messages show: the path relative to the working directory where it lies below it.
    """

    label: str = "<python>"
    file: Path | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line_of(self, key: str | KeyPath) -> int | None:
        """Line of a key such as `requires.head_dim.min`, counted from 1.

        A key that is not written there gets the line of the nearest section around it, at last 1; None for a
        spec that was built in Python. List items are addressed by position: `requires.dtypes.0`.
        """
        if self.file is None:
            return None
        path = tuple(key.split(".")) if isinstance(key, str) else key
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return 1

    def cite(self, key: str | KeyPath) -> str:
        """`FILE:LINE` of a key, or `<python>`."""
        line = self.line_of(key)
        return self.label if line is None else f"{self.label}:{line}"


def display_path(path: Path) -> str:
    """The path relative to the working directory where it lies below it, else in full."""
    full = path.absolute()
    here = Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(full)

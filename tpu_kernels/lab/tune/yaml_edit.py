"""Puts a `tune:` section into a spec's YAML file and leaves everything else in it as it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.specs import load_spec
from tpu_kernels.specs.load import parse_spec

_KEY = re.compile(r"^tune\s*:")


def write_tuning(path: Path, tune: Mapping[str, Mapping[str, int]]) -> None:
    """Sets `tune` in the spec file at `path`; comments, order and layout of all other keys stay.

    Sections that `tune` does not name keep their values. Raises SpecError if the file is no spec, or if it is written
    in a way that cannot be edited; it is then left as it was.
    """
    spec = load_spec(path)
    merged = {**{key: dict(value) for key, value in spec.tune.items()}, **tune}
    merged = {key: dict(value) for key, value in merged.items() if value}
    edited = replace_section(path.read_text(), merged)
    wanted = spec.model_dump() | {"tune": merged}
    if parse_spec(edited.encode(), file=path.absolute()).model_dump() != wanted:
        raise SpecError(
            explain(
                f"{path}: the tuning cannot be written.",
                needs="the key `tune` at the beginning of a line, its values below it or in braces behind it",
                next_step=f"write by hand: {_section(merged)}",
            ),
            file=str(path),
        )
    path.write_text(edited)


def replace_section(text: str, tune: Mapping[str, Mapping[str, int]]) -> str:
    """`text` with its top-level section `tune` replaced, or with one added at the end."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if _KEY.match(line)), None)
    if start is None:
        return "\n".join([*lines, "", *_section(tune).splitlines()]) + "\n"
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith((" ", "\t"))):
        end += 1
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1  # the empty lines before the next key stay
    return "\n".join([*lines[:start], *_section(tune).splitlines(), *lines[end:]]) + "\n"


def _section(tune: Mapping[str, Mapping[str, int]]) -> str:
    if not tune:
        return "tune: {}"
    pairs = (
        f"  {key}: {{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"
        for key, values in tune.items()
    )
    return "\n".join(["tune:", *pairs])

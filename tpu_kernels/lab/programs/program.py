"""A captured program, in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tpu_kernels.errors import CompileError, explain

INDEX: Final = "programs.json"


@dataclass(frozen=True)
class Program:
    """One program as torch_tpu hands it to a TPU's compiler."""

    name: str
    """For people and for file names: "decode", "decode batch 1 cache 4096"."""
    stablehlo: bytes = field(repr=False)
    """A StableHLO portable artifact, for libtpu; jaxlib is too old to read it."""
    compile_options: bytes = field(repr=False)
    """The serialized CompileOptionsProto that came with it."""
    module: str = ""
    """Name of its module, as torch_tpu chose it."""
    note: str = ""
    """What else is known of it: which kernels the layers of a model took."""
    runs: int = 1
    """How often it runs in the step that it belongs to."""

    @property
    def file_name(self) -> str:
        return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in self.name)


def save_programs(programs: Iterable[Program], folder: Path) -> Path:
    """Write `programs` into `folder`: two files each, and an index. Returns the folder.

    Raises ValueError where two programs would share their files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    for program in programs:
        if any(program.file_name == entry["file"] for entry in index):
            raise ValueError(f"two programs are called {program.name!r}")
        (folder / f"{program.file_name}.stablehlo").write_bytes(program.stablehlo)
        (folder / f"{program.file_name}.options").write_bytes(program.compile_options)
        known = {"name": program.name, "module": program.module, "note": program.note, "runs": program.runs}
        index.append({**known, "file": program.file_name})
    (folder / INDEX).write_text(json.dumps(index, indent=1))
    return folder


def load_programs(folder: Path) -> list[Program]:
    """The programs that `save_programs` wrote into `folder`, in order. CompileError if there are none."""
    try:
        index = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError) as error:
        raise CompileError(
            explain("There are no captured programs.", needs=f"a folder with {INDEX}", got=f"{folder}: {error}")
        ) from error
    return [
        Program(
            entry["name"],
            (folder / f"{entry['file']}.stablehlo").read_bytes(),
            (folder / f"{entry['file']}.options").read_bytes(),
            entry["module"],
            entry["note"],
            entry["runs"],
        )
        for entry in index
    ]

"""Which architectures are run, where their rows are kept, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.harness.coverage.architectures import (
    CHECKOUT_FILE,
    load_architectures,
    right_in_plain_transformers,
)
from tpu_kernels.harness.coverage.row import Row
from tpu_kernels.harness.coverage.run import run_all
from tpu_kernels.harness.coverage.table import render, summary
from tpu_kernels.lab.programs.requests import Flow
from tpu_kernels.registry import load_registry
from tpu_kernels.specs.vocabulary import POLICIES, Policy

PAGE: Final = CHECKOUT_FILE.parents[2] / "docs" / "coverage.md"
"""The page of a source checkout."""
_PACKAGES: Final = ("transformers", "torch", "torch_tpu", "kernels", "jax")


def select(names: Sequence[str], shard: str | None, every: bool, file: Path | None = None) -> list[str]:
    """The architectures asked for: by name, all, or every Nth from the Ith of a shard `I/N` (I from 0).

    Of those that plain transformers gets right, unless named. Raises ValueError for a shard that is not `I/N`, and
    where nothing or two things are asked for; SpecError for a name that the file does not list.
    """
    if sum((bool(names), shard is not None, every)) != 1:
        raise ValueError("name architectures, or pass --all, or --shard I/N: one of the three")
    known = load_architectures(file)
    if unknown := [name for name in names if name not in known]:
        raise SpecError(
            explain(
                f"the list of architectures has no {', '.join(unknown)}.",
                needs=f"names of its {len(known)} entries, such as {', '.join(list(known)[:3])}",
                next_step="look into the file, or pass another with --architectures FILE.",
            )
        )
    right = right_in_plain_transformers(known)
    if shard is None:
        return list(names) or right
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"a shard is I/N with I from 0 to N - 1, got {shard!r}")
    return right[int(index) :: int(count)]


def collect(
    names: Sequence[str],
    *,
    file: Path | None = None,
    flow: Flow = "tpu-kernels",
    specs: Sequence[str] = (),
    rows_file: Path | None = None,
    policies: Sequence[Policy] = POLICIES,
    processes: int = 1,
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The rows of `names`. Rows of the same run that stand in `rows_file` (one JSON object a line) are not run again
    unless they ended in an error; new ones are added to it as they come, so that a long run can be taken up again.

    Raises SpecError for a spec that cannot be read.
    """
    load_registry(specs)  # a mistake in a spec is one error here, and not one in every row
    run = f"{flow} {'/'.join(policies)}, specs {list(specs)}, list {file or 'of the checkout'}, {_versions()}"
    kept = _read(rows_file, run)

    def keep(row: Row) -> None:
        if rows_file is not None:
            with rows_file.open("a") as stream:
                stream.write("\n" + row.model_copy(update={"run": run}).model_dump_json() + "\n")
        progress(row)

    missing = [name for name in names if name not in kept]
    rows = run_all(missing, file=file, flow=flow, specs=specs, policies=policies, processes=processes, progress=keep)
    new = {row.name: row for row in rows}
    return [new.get(name) or kept[name] for name in names]


def _read(rows_file: Path | None, run: str) -> dict[str, Row]:
    """The rows of that run without an error; a line that was cut off counts for nothing."""
    if rows_file is None or not rows_file.exists():
        return {}
    rows: dict[str, Row] = {}
    for line in rows_file.read_text().splitlines():
        try:
            row = Row.model_validate_json(line)
        except ValidationError:
            continue
        if row.run == run and row.error is None:
            rows[row.name] = row
    return rows


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in _PACKAGES)


def page(rows: Iterable[Row], command: str) -> str:
    """The text of docs/coverage.md."""
    rows = sorted(rows, key=lambda row: row.name)
    return f"""# Coverage

{summary(rows)}

Made by `{command}` on the emulated TPU with {_versions()}. Do not edit it by hand.

Each architecture is a tiny model with random weights in float32, in which norms, biases, sinks and windows bite.
`enable_tpu_kernels` is called with a prefill chunk of 8, and the model generates 14 tokens greedily behind each of two
prompts of 11. The reference is plain transformers on the CPU, one prompt at a time, with eager attention, a dynamic
cache and no compilation.

- **auto**, **always**: the reference's tokens, and logits within 1e-3, under that policy.
- **padded**: the same, under both, for a batch whose second prompt has 5 tokens and is padded on the left. `-` where
  plain transformers itself is not right.
- **attention**, **norm**, **mlp**, **experts**, **rotary**: layers that got a kernel with `policy="always"`, of all.

The table has the architectures of `tests/data/architectures.json` that compile and that plain static-cache generation
gets right.

{render(rows)}"""

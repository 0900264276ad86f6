"""What a tensor-parallel plan consists of, as data, and as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpu_kernels.plan.table import render_rows

GIB = 2**30
_WIDTH = 150


@dataclass(frozen=True)
class Rule:
    """One rule: the path of a module or parameter (`*` for each layer's number), the style of transformers' or ours
    that it gets, the one in the model's own plan (None: it has none there), and why they differ."""

    path: str
    style: str
    own: str | None
    why: str = ""

    @property
    def origin(self) -> Literal["kept", "overridden", "added"]:
        return "kept" if self.own == self.style else "added" if self.own is None else "overridden"


@dataclass(frozen=True)
class Chunk:
    """The heads of one chip: a run of query heads, and the key-value heads that they use."""

    query: range
    kv: range


@dataclass(frozen=True)
class HeadSplit:
    """Which heads of an attention layer go to which chip.

    path       of the layers, `*` for each layer's number
    chunks     one for each chip, in order
    whole      every chip computes every head, on weights that may still be divided
    layers     how many such layers there are
    key_size, value_size  numbers in a cached key and value of one head
    """

    path: str
    query_heads: int
    kv_heads: int
    chunks: tuple[Chunk, ...]
    whole: bool
    layers: int
    key_size: int
    value_size: int

    @property
    def local_kv_heads(self) -> int:
        """Key-value heads in the cache of each chip."""
        return len(self.chunks[0].kv)


@dataclass(frozen=True)
class ChipFit:
    """Whether weights and cache fit one chip (one torch device) of a TPU generation; all figures in bytes."""

    generation: str
    room: int
    """What is left for weights and cache of the memory that programs may use."""
    needed: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.room


@dataclass(frozen=True)
class TensorParallelPlan:
    """How a model is divided over `tp_size` chips. `print(plan)` shows tables.

    model_class   of transformers
    rules         every rule in force, the kept ones of the model's own plan included
    heads         of each kind of attention layer
    tied          pairs of parameters that are one tensor
    notes         what follows from sizes that do not divide, and what else is worth knowing
    local_shapes  of every parameter, by its path: the shape on each chip, the same on all
    weight_bytes, cache_bytes  on each chip; the cache is of `batch_size` rows of `cache_len` positions in `dtype`
    fits          one entry for each TPU generation
    """

    model_class: str
    tp_size: int
    rules: tuple[Rule, ...]
    heads: tuple[HeadSplit, ...]
    tied: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    local_shapes: dict[str, tuple[int, ...]]
    weight_bytes: int
    cache_bytes: int
    cache_len: int
    batch_size: int
    dtype: str
    fits: tuple[ChipFit, ...]

    @property
    def overrides(self) -> dict[str, str]:
        """The rules that differ from the model's own plan: `DistributedConfig(tp_plan=...)`."""
        return {rule.path: rule.style for rule in self.rules if rule.origin != "kept"}

    @property
    def kept(self) -> dict[str, str]:
        """The rules of the model's own plan that stay as they are."""
        return {rule.path: rule.style for rule in self.rules if rule.origin == "kept"}

    def __str__(self) -> str:
        rules = [(rule.path, rule.style, _origin(rule), rule.why) for rule in self.rules]
        heads = [row for split in self.heads for row in _head_rows(split)]
        fits = [
            (fit.generation, _gib(fit.needed), _gib(fit.room), "yes" if fit.fits else "no")
            for fit in sorted(self.fits, key=lambda each: each.room)
        ]
        memory = (
            f"each chip: {_gib(self.weight_bytes)} of weights, {_gib(self.cache_bytes)} of cache"
            f" (batch {self.batch_size}, {self.cache_len} positions, {self.dtype})"
        )
        chips = "1 chip" if self.tp_size == 1 else f"{self.tp_size} chips"
        changed = len(self.overrides)
        parts = [
            f"{self.model_class} on {chips}: {len(self.kept)} rules of the model's own plan kept, {changed} changed",
            render_rows("rules", ("path", "style", "", "why"), rules, width=_WIDTH),
            render_rows("heads", ("layers", "chip", "query heads", "key-value heads"), heads),
            memory,
            render_rows("memory", ("generation", "needed", "room", "fits"), fits),
            *(f"tied: {target} is {source}" for target, source in self.tied),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(parts)


def _origin(rule: Rule) -> str:
    return rule.origin if rule.origin != "overridden" else f"instead of {rule.own}"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _run(heads: range) -> str:
    return str(heads.start) if len(heads) == 1 else f"{heads.start}-{heads.stop - 1}"


def _head_rows(split: HeadSplit) -> list[tuple[str, str, str, str]]:
    """A row for each chip; one for all where each has the same."""
    layers = f"{split.path} ({split.layers})"
    if split.whole:
        chunk = split.chunks[0]
        return [(layers, "each", f"{_run(chunk.query)}, whole", f"{_run(chunk.kv)}, whole")]
    return [(layers, str(chip), _run(chunk.query), _run(chunk.kv)) for chip, chunk in enumerate(split.chunks)]

"""What can be captured: a function on given shapes, or the steps of a model's generation. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tpu_kernels.ops.attention.cases import AttentionCase

Argument = tuple[tuple[int, ...], str] | None
"""Shape and dtype of a tensor, or None for an argument that is left out."""

Flow = Literal["tpu-kernels", "plain"]
FLOWS: Final[tuple[Flow, ...]] = ("tpu-kernels", "plain")
Step = Literal["prefill", "decode"]
STEPS: Final[tuple[Step, ...]] = ("prefill", "decode")


@dataclass(frozen=True)
class FunctionCase:
    """A plain torch function, to be compiled by torch.compile for arguments of given shapes."""

    name: str
    function: str
    """Where it is: "package.module:function"."""
    arguments: tuple[Argument, ...]
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelCase:
    """The steps of a model's generation, of its config alone: a prefill chunk, a decode step, or both."""

    model: str
    """Hub id, folder, or path of a config.json; no weights are read."""
    flow: Flow = "tpu-kernels"
    """"tpu-kernels": after enable_tpu_kernels; "plain": as transformers generates with a static cache."""
    steps: tuple[Step, ...] = STEPS
    batch: int = 1
    max_len: int = 4096
    """Length of the key/value cache, tokens."""
    dtype: str = "bfloat16"
    prefill_chunk: int | None = None
    """Tokens of the prefill chunk; None is what an enabled model takes."""
    generation: str = "v5e"
    """TPU generation that kernels and their tuning are chosen for (flow "tpu-kernels")."""


def reference_cases(cases: Iterable[AttentionCase], dtypes: Sequence[str]) -> list[FunctionCase]:
    """The torch reference of attention for each case and dtype."""
    return [
        FunctionCase(
            f"{case.name} {dtype}",
            "tpu_kernels.ops.attention.reference:static_attention_reference",
            case.arguments(dtype),
            {"scale": case.scale, "softcap": case.softcap},
        )
        for case in cases
        for dtype in dtypes
    ]

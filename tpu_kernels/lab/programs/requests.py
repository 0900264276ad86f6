"""What can be captured: a function on given shapes, or the steps of a model's generation. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tpu_kernels.ops.case import Argument, OpCase

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
    tp_size: int = 1
    """Chips that the model is divided over, by tensor parallelism."""
    rank: int = 0
    """The one of them whose programs these are."""
    spmd_safe: bool = True
    """Whether a step runs in `torch.tpu.distributed.spmd_safe`; otherwise it is cut at every collective."""


def reference_cases(cases: Iterable[OpCase], dtypes: Sequence[str]) -> list[FunctionCase]:
    """The op's torch reference for each case and dtype."""
    return [_on_torch(case, dtype, case.reference, f"{case.name} {dtype}") for case in cases for dtype in dtypes]


def baseline_cases(case: OpCase, dtype: str) -> dict[str, FunctionCase]:
    """What else a case is compared with, by label: other torch functions for the same call.

    A case names them in an attribute `baselines`, a mapping of labels to "module:function".
    """
    baselines: Mapping[str, str] = getattr(case, "baselines", {})
    return {
        label: _on_torch(case, dtype, function, f"{case.name} {dtype} {label}") for label, function in baselines.items()
    }


def _on_torch(case: OpCase, dtype: str, function: str, name: str) -> FunctionCase:
    return FunctionCase(name, function, case.arguments(dtype), dict(case.keywords))

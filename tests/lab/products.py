"""Cases of an op that there is not: products of matrices, by the kernel `matmul` of `cost/kernels.py`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from tpu_kernels import KernelSpec
from tpu_kernels.ops.case import Argument
from tpu_kernels.specs import PathSource
from tpu_kernels.specs.parts import Requires

HERE = "tests.lab.products"
BLOCKS = {"block_m": 128, "block_n": 128, "block_k": 128}


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.float() @ y.float()).to(x.dtype)


def product_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Slower than once, and not to be simplified: the second reads what the first wrote."""
    once = x @ y
    return once + (torch.nn.functional.softmax(once, dim=-1) @ y.T) @ y


def as_many_as_there_are(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The shape of the result depends on the contents, so torch.compile does not take it whole."""
    return x[x > 0] * y.sum()


@dataclass(frozen=True)
class ProductCase:
    name: str
    tokens: int
    hidden: int
    model: str = "nobody/nothing"
    function: str = "matmul"
    reference: str = f"{HERE}:product"

    @property
    def baselines(self) -> dict[str, str]:
        return {"in steps": f"{HERE}:product_twice", "counted": f"{HERE}:as_many_as_there_are"}

    @property
    def keywords(self) -> dict[str, Any]:
        return {}

    @property
    def sizes(self) -> dict[str, int]:
        return {"tokens": self.tokens, "hidden": self.hidden}

    def resized(self, *, tokens: int | None = None) -> Self:
        return replace(self, tokens=tokens or self.tokens)

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        return ((self.tokens, self.hidden), dtype), ((self.hidden, self.hidden), dtype)

    def steering(self) -> dict[int, Any]:
        return {}

    def needed_bytes(self, dtype: str) -> int:
        return (2 * self.tokens + self.hidden) * self.hidden * (4 if dtype == "float32" else 2)

    def needed_flops(self) -> int:
        return 2 * self.tokens * self.hidden**2


CASES = tuple(
    ProductCase(f"{name}/{phase}", tokens, hidden)
    for name, hidden in (("tiny", 256), ("small", 512), ("wide", 1024))
    for phase, tokens in (("decode", 128), ("prefill", 256))
)


def module(op: str) -> ModuleType:
    """What `tpu_kernels.ops.<op>.cases` would be."""
    made = ModuleType(f"tpu_kernels.ops.{op}.cases")
    made.CASES = CASES
    made.SMALL_CASES = tuple(replace(case, name=f"{case.name}/small") for case in CASES)
    made.REPRESENTATIVES = ("wide", "tiny")
    return made


def spec(folder: Path, op: str) -> KernelSpec:
    """The spec of a kernel repository in `folder`, with the sizes of blocks as its tuning."""
    package = folder / "torch-ext" / "products"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "cost" / "kernels.py", package / "kernel.py")
    return KernelSpec(
        name=f"{op}/products",
        op=op,
        description="Products.",
        source=PathSource(path=str(folder)),
        function="products",
        requires=Requires(dtypes=("bfloat16",)),
        tune={"default": BLOCKS},
    )

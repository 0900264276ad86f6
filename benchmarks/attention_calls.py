"""Calls of attention by their sizes, and their estimated times."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_kernels.lab.aot import AotJob
from tpu_kernels.lab.cost.compare import costs, xla_costs
from tpu_kernels.lab.cost.compiling import schedule_jobs
from tpu_kernels.lab.cost.kernel_cost import KernelCost
from tpu_kernels.lab.cost.subject import attention_subject
from tpu_kernels.lab.jax_source import STATIC_ATTENTION
from tpu_kernels.lab.programs import FunctionCase, capture_functions
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.ops.attention.cases import AttentionCase
from tpu_kernels.ops.attention.contract import AttentionShape

FUNCTIONS = Path(__file__).with_name("attention_functions.py")
DTYPE = "bfloat16"


def parser_of(prog: str, description: str | None, *, max_len: int) -> argparse.ArgumentParser:
    """The options that both benchmarks of attention have."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--chip", action="append", help=f"default: {', '.join(GENERATIONS)}")
    parser.add_argument("--q-heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--max-len", type=int, default=max_len)
    parser.add_argument("--json", action="store_true")
    return parser


@dataclass(frozen=True)
class Sizes:
    """Of one call; `length` positions of the cache are valid, the new tokens among them."""

    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    max_len: int
    length: int

    @property
    def case(self) -> AttentionCase:
        shape = AttentionShape(
            self.batch, self.q_heads, self.kv_heads, self.tokens, self.max_len, self.head_dim, self.head_dim
        )
        return AttentionCase(f"{self.batch} x {self.tokens} of {self.length}", "", shape, self.head_dim**-0.5)


def kernel_costs(calls: Sequence[Sizes], chip: str) -> list[KernelCost]:
    """Of the bundled kernel, with the sizes of blocks that it picks itself."""
    subjects = [attention_subject(call.case, STATIC_ATTENTION, DTYPE, call.length) for call in calls]
    results = costs(subjects, chip, [None] * len(subjects))
    for result in results:
        if result.error:
            raise SystemExit(f"{result.subject.name} on {chip}: {result.error}")
    return [result.kernel for result in results if result.kernel]


def xla_seconds(calls: Sequence[Sizes], chips: Sequence[str]) -> dict[tuple[str, Sizes], float]:
    """Of `grouped_attention`, over the whole cache. The time does not depend on `length`: one program for all."""
    shapes = {call.case.shape: call for call in calls}
    programs = capture_functions([_grouped(call) for call in shapes.values()])
    times = {}
    for chip in chips:
        found = dict(zip(shapes, xla_costs(programs, chip), strict=True))
        times.update({(chip, call): cost.seconds for call in calls if (cost := found[call.case.shape])})
    return times


def _grouped(call: Sizes) -> FunctionCase:
    shape = call.case.shape
    name = f"{shape.batch} {shape.query_heads} {shape.kv_heads} {shape.queries} {shape.length} {shape.key_dim}"
    return FunctionCase(
        name,
        "benchmarks.attention_functions:grouped_attention",
        call.case.arguments(DTYPE)[:4],  # no sinks
        {"scale": call.case.scale},
    )


def splash_seconds(calls: Sequence[Sizes], chip: str) -> list[float | None]:
    """Of JAX's splash attention among the new tokens; None where it does not take the sizes."""
    jobs = []
    for call in calls:
        query = (call.batch, call.q_heads, call.tokens, call.head_dim)
        new = (call.batch, call.kv_heads, call.tokens, call.head_dim)
        jobs.append(AotJob("splash", FUNCTIONS, "splash", ((query, DTYPE), (new, DTYPE), (new, DTYPE))))
    return [result.cost().seconds if result.ok else None for result in schedule_jobs(jobs, chip)]

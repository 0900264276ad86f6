"""Layers of a model that transformers divided: what a kernel in their place must do, and what stands against any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    script = str(Path(__file__).parent / "scripts" / "layers_of_a_rank.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("case", "op", "intermediate", "bias", "shared"),
    [
        ("by columns and rows", "mlp", 48, None, []),
        ("with biases", "mlp", 49, "down_proj.bias", []),
        ("packed", "mlp", 48, None, []),
        ("experts", "experts", 16, None, []),
        ("experts with biases", "experts", 48, None, ["down_proj_bias"]),
    ],
)
def test_local_sizes_and_the_sum_over_the_ranks(
    cases: dict[str, Any], case: str, op: str, intermediate: int, bias: str | None, shared: list[str]
) -> None:
    layer = cases[case][op]
    assert layer["obstacle"] is None
    assert layer["sizes"]["intermediate"] == intermediate
    assert layer["summed"] == [2, bias, shared]


@pytest.mark.parametrize(
    ("case", "op", "says"),
    [
        ("gathered in between", "mlp", "not split once and summed once (gate_up_proj: ColwiseParallel"),
        ("fused but cut in one piece", "mlp", "not split once and summed once (gate_up_proj: ColwiseParallel"),
        ("the last projection whole", "mlp", "down_proj: TensorParallelLayer"),
        ("experts divided among ranks", "experts", "expert parallelism"),
        ("a norm that is cut", "norm", "its output is gathered or scattered between the ranks"),
    ],
)
def test_what_no_kernel_can_take(cases: dict[str, Any], case: str, op: str, says: str) -> None:
    assert says in cases[case][op]["obstacle"]


def test_attention_needs_nothing(cases: dict[str, Any]) -> None:
    assert all(layers["attention"]["obstacle"] is None for layers in cases.values())

"""The kernel in the interpreter that simulates copies: races, stale memory and reads out of bounds fail."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.hub_kernels.test_grouped_experts_few import BLOCK_BYTES, EXPERTS, name_of
from tests.support.today import part_of_today
from tpu_kernels.lab.interpret import race_checked
from tpu_kernels.ops.experts.cases import case
from tpu_kernels.ops.experts.suite import case_probe, check_probe, edge_probes

COPIES = ("late", "early")
DECODES = ("qwen3-30b-a3b", "gpt-oss-20b", "odd-sizes")
RUNS = [probe for probe in edge_probes() if probe.name.startswith("runs of")]


@pytest.mark.parametrize(("name", "copies"), part_of_today(product(DECODES, COPIES), 2))
def test_few_tokens(name: str, copies) -> None:
    checked = race_checked(EXPERTS, copies=copies, block_bytes=BLOCK_BYTES)
    assert check_probe(checked, case_probe(case(f"{name}/decode/small"))) is None


@pytest.mark.parametrize(("probe", "copies"), part_of_today(product(RUNS, COPIES), 2), ids=name_of)
def test_sorted_rows(probe, copies) -> None:
    checked = race_checked(EXPERTS, copies=copies, block_bytes=BLOCK_BYTES, tile=32)
    assert check_probe(checked, probe) is None


def test_a_ring_of_two() -> None:
    checked = race_checked(EXPERTS, copies="early", block_bytes=BLOCK_BYTES, num_buffers=2)
    assert check_probe(checked, case_probe(case("qwen3-30b-a3b/decode/small"))) is None


@pytest.mark.parametrize("tile", [None, 32])
def test_no_expert_at_all(tile: int | None) -> None:
    probe = next(probe for probe in edge_probes() if probe.name == "no expert at all")
    assert check_probe(race_checked(EXPERTS, tile=tile), probe) is None


def test_bfloat16() -> None:
    checked = race_checked(EXPERTS, block_bytes=BLOCK_BYTES)
    assert check_probe(checked, case_probe(case("two-layer/decode/small"), torch.bfloat16)) is None

"""The kernel's numbers where every visit takes all tokens, in the HLO interpreter, against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.support.today import cases_of_today, part_of_today
from tpu_kernels.lab.interpret import hlo_interpreted
from tpu_kernels.lab.jax_source import HUB_KERNELS, load_source
from tpu_kernels.ops.experts.cases import REPRESENTATIVES, SMALL_CASES, case
from tpu_kernels.ops.experts.suite import Probe, case_probe, check_probe, edge_probes

KERNEL = HUB_KERNELS / "grouped-experts" / "torch-ext" / "grouped_experts" / "kernel.py"
EXPERTS = load_source(KERNEL).experts
BLOCK_BYTES = 10_000  # several copies for each weight of a small case
IN_BFLOAT16 = ("qwen3-30b-a3b", "gpt-oss-20b", "two-layer", "odd-sizes")


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.fixture(scope="module")
def few():
    return hlo_interpreted(EXPERTS, block_bytes=BLOCK_BYTES)


@pytest.mark.parametrize("one", cases_of_today(SMALL_CASES, REPRESENTATIVES), ids=name_of)
def test_cases_in_float32(few, one) -> None:
    assert check_probe(few, case_probe(one)) is None


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_cases_in_bfloat16(few, name: str) -> None:
    assert check_probe(few, case_probe(case(f"{name}/prefill/small"), torch.bfloat16)) is None


@pytest.mark.parametrize("probe", part_of_today(edge_probes(), 2), ids=name_of)
def test_edges_in_float32(few, probe: Probe) -> None:
    assert check_probe(few, probe) is None


@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[5:8], ids=name_of)
def test_edges_in_bfloat16(few, probe: Probe) -> None:
    assert check_probe(few, probe) is None


def test_experts_that_nobody_chose_are_not_read_and_rows_are_their_own() -> None:
    """NaN in a weight that is not used, and in one token, reaches no other token."""
    probe = case_probe(case("qwen3-30b-a3b/decode/small"))
    hidden, indices, weights, gate_up, down, *_ = (part for part in probe.arguments)
    indices = torch.tensor([[0, 3, 5], [3, 0, 6], [5, 6, 8]], dtype=torch.int32)
    run = hlo_interpreted(EXPERTS, block_bytes=BLOCK_BYTES)
    clean = run(hidden, indices, weights, gate_up, down, **probe.keywords)
    gate_up, down, hidden = gate_up.clone(), down.clone(), hidden.clone()
    for unused in (1, 2, 4, 7):
        gate_up[unused], down[unused] = torch.nan, torch.nan
    hidden[1] = torch.nan
    got = run(hidden, indices, weights, gate_up, down, **probe.keywords)
    torch.testing.assert_close(got[[0, 2]], clean[[0, 2]], rtol=0, atol=0)
    assert bool(got[1].isnan().all())

"""The kernel's numbers where rows are sorted by expert, in the HLO interpreter, against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.hub_kernels.test_grouped_experts_few import BLOCK_BYTES, EXPERTS, IN_BFLOAT16, name_of
from tests.support.today import cases_of_today, part_of_today
from tpu_kernels.lab.interpret import hlo_interpreted
from tpu_kernels.ops.experts.cases import REPRESENTATIVES, SMALL_CASES, case
from tpu_kernels.ops.experts.suite import Probe, case_probe, check_probe, counted, edge_probes

PREFILLS = cases_of_today((one for one in SMALL_CASES if "prefill" in one.name), REPRESENTATIVES)
EDGES = [probe for probe in edge_probes() if "rounding" not in probe.name]


@pytest.fixture(scope="module")
def many():
    return hlo_interpreted(EXPERTS, block_bytes=BLOCK_BYTES, tile=32)


@pytest.mark.parametrize("one", PREFILLS, ids=name_of)
def test_cases_in_float32(many, one) -> None:
    assert check_probe(many, case_probe(one)) is None


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_cases_in_bfloat16(many, name: str) -> None:
    assert check_probe(many, case_probe(case(f"{name}/prefill/small"), torch.bfloat16)) is None


@pytest.mark.parametrize("probe", part_of_today(EDGES, 2, turn=1), ids=name_of)
def test_edges_in_float32(many, probe: Probe) -> None:
    assert check_probe(many, probe) is None


@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[3:6], ids=name_of)
def test_edges_in_bfloat16(many, probe: Probe) -> None:
    assert check_probe(many, probe) is None


@pytest.mark.parametrize("tuning", [{"tile": 16}, {"tile": 256}, {"tile": 48, "num_buffers": 2}], ids=str)
def test_tuning_changes_no_result(tuning: dict[str, int]) -> None:
    probe = next(probe for probe in edge_probes() if probe.name.startswith("runs of 0"))
    assert check_probe(hlo_interpreted(EXPERTS, **tuning), probe) is None


def test_several_products_of_a_visit() -> None:
    """A tile of more rows than one product has, and a run of an expert that fills more than that tile."""
    one = case("qwen3-30b-a3b/prefill/small").resized(tokens=300)
    probe = case_probe(one)
    hidden, _, weights, *rest = probe.arguments
    indices = counted([5, 290, 0, 0, 0, 0, 0, 5], 1).to(torch.int32)
    telling = Probe("long runs", (hidden, indices, weights[:, :1].contiguous(), *rest), probe.keywords)
    assert check_probe(hlo_interpreted(EXPERTS, tile=256), telling) is None


def test_many_tokens_are_sorted_without_being_told() -> None:
    """Beyond the size up to which a visit takes all tokens: the same numbers."""
    probe = case_probe(case("odd-sizes/prefill/small").resized(tokens=140))
    assert check_probe(hlo_interpreted(EXPERTS), probe) is None

"""The Pallas kernel in the interpreter that simulates copies: races, stale memory and reads out of bounds fail."""

from __future__ import annotations

import pytest
import torch

from tests.support.today import part_of_today
from tpu_kernels.lab.interpret import KernelRaceError, race_checked
from tpu_kernels.ops.attention.cases import case
from tpu_kernels.ops.attention.suite import Probe, case_probe, check_probe, edge_probes

CASES = (
    "qwen3-0.6b/decode/small",
    "qwen3-0.6b/prefill/small",
    "gpt-oss-20b/decode/small",
    "gpt-oss-20b/prefill/small",
    "deepseek-v2-lite/decode/small",
)


@pytest.fixture(scope="module")
def checked(source):
    return race_checked(source.attend, block_k=128)


@pytest.mark.parametrize("name", CASES)
def test_cases(checked, name: str) -> None:
    assert check_probe(checked, case_probe(case(name))) is None


@pytest.mark.parametrize("probe", part_of_today(edge_probes(), 2), ids=lambda probe: probe.name)
def test_edges(checked, probe: Probe) -> None:
    assert check_probe(checked, probe) is None


def test_bfloat16(checked) -> None:
    assert check_probe(checked, case_probe(case("qwen3-0.6b/decode/small"), torch.bfloat16)) is None


@pytest.mark.parametrize("name", ["decode, edges", "prefill, edges"])
def test_copies_as_early_as_they_may_be(source, name: str) -> None:
    attend = race_checked(source.attend, copies="early", block_k=128)
    probe = next(probe for probe in edge_probes() if probe.name == name)
    assert check_probe(attend, probe) is None


def test_a_ring_of_two(source) -> None:
    attend = race_checked(source.attend, block_k=128, num_buffers=2)
    probe = next(probe for probe in edge_probes() if probe.name == "decode, edges")
    assert check_probe(attend, probe) is None


def test_a_function_without_a_kernel_is_refused() -> None:
    with pytest.raises(KernelRaceError, match="did not run"):
        race_checked(lambda query: query + 1)(torch.ones(2))

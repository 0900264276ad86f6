"""The Pallas kernel in the interpreter that simulates copies: races, stale memory and reads out of bounds fail."""

from __future__ import annotations

import pytest
import torch

from tests.hub_kernels.fused_mlp import SOURCE, interpreted
from tests.support.today import part_of_today
from tpu_kernels.lab.interpret import race_checked
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.mlp.cases import case
from tpu_kernels.ops.mlp.suite import Probe, case_probe, check_probe, edge_probes

FUSED_MLP = load_source(SOURCE)
CHECKED = interpreted(FUSED_MLP, race_checked, block_rows=16, block_i=128)
CASES = (
    "qwen3-8b/decode/small",
    "glm-4-9b/prefill/small",
    "deepseek-v2-lite/decode-8/small",
    "gpt2-xl/prefill/small",
    "starcoder2-3b/prefill/small",
)
EDGES = ("round last", "37 to 53", "192 to 384", "128 to 328", "130 to 300", "33 rows")


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    assert check_probe(CHECKED, case_probe(case(name))) is None


@pytest.mark.parametrize(
    "probe",
    part_of_today((one for one in edge_probes() if any(part in one.name for part in EDGES)), 2),
    ids=lambda probe: probe.name,
)
def test_edges(probe: Probe) -> None:
    assert check_probe(CHECKED, probe) is None


def test_bfloat16() -> None:
    assert check_probe(CHECKED, case_probe(case("glm-4-9b/prefill/small"), torch.bfloat16)) is None


@pytest.mark.parametrize("name", ["glm-4-9b/prefill/small", "gpt2-xl/prefill/small"])
def test_copies_as_early_as_they_may_be(name: str) -> None:
    early = {
        function: race_checked(getattr(FUSED_MLP, function), copies="early", block_rows=16, block_i=128)
        for function in CHECKED
    }
    assert check_probe(early, case_probe(case(name))) is None

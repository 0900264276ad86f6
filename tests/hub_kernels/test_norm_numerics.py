"""The Pallas norm kernel's numbers, in both interpreters, against the reference."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.support.today import cases_of_today, part_of_today
from tpu_kernels.lab.interpret import hlo_interpreted, race_checked
from tpu_kernels.lab.jax_source import HUB_KERNELS, load_source
from tpu_kernels.ops.norm.cases import REPRESENTATIVES, SMALL_CASES
from tpu_kernels.ops.norm.suite import Probe, case_probe, check_probe, edge_probes, make_probe

KERNEL = HUB_KERNELS / "norm" / "torch-ext" / "norm" / "kernel.py"
BFLOAT16_MODELS = ("qwen3-0.6b", "gemma-2-9b", "command-r-plus-query", "minitron-4b", "chameleon-7b-query")


@pytest.fixture(scope="module")
def source() -> ModuleType:
    return load_source(KERNEL)


@pytest.fixture(scope="module")
def interpreted(source: ModuleType):
    return hlo_interpreted(source.norm)


@pytest.fixture(scope="module")
def in_blocks(source: ModuleType):
    """Blocks are short, so that most probes have several, and a last one that reaches past the end."""
    return hlo_interpreted(source.norm, block_rows=16)


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.parametrize("one", cases_of_today(SMALL_CASES, REPRESENTATIVES), ids=name_of)
def test_cases_in_float32(interpreted, one) -> None:
    assert check_probe(interpreted, case_probe(one)) is None


@pytest.mark.parametrize("one", [one for one in SMALL_CASES if one.name.split("/")[0] in BFLOAT16_MODELS], ids=name_of)
def test_cases_in_bfloat16(interpreted, one) -> None:
    assert check_probe(interpreted, case_probe(one, torch.bfloat16)) is None


@pytest.mark.parametrize("probe", part_of_today(edge_probes(), 2), ids=name_of)
def test_edges_in_float32(in_blocks, probe: Probe) -> None:
    assert check_probe(in_blocks, probe) is None


@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16)), ids=name_of)
def test_edges_in_bfloat16(in_blocks, probe: Probe) -> None:
    assert check_probe(in_blocks, probe) is None


@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[5:15], ids=name_of)
def test_no_race_and_no_memory_that_was_not_written(source: ModuleType, probe: Probe) -> None:
    assert check_probe(race_checked(source.norm, block_rows=16), probe) is None


def test_tuning_changes_no_bit(source: ModuleType) -> None:
    probe = make_probe("rows", (70, 384), weight=(384,), dtype=torch.bfloat16)
    results = [
        hlo_interpreted(source.norm, block_rows=rows)(probe.x, probe.weight, None, **probe.keywords)
        for rows in (None, 16, 48, 4096)
    ]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"groups": 1, "rows": 4096, "width": 4096}, (1, 128)),
        ({"groups": 1, "rows": 4, "width": 4096}, (1, 4)),
        ({"groups": 4, "rows": 1001, "width": 4096}, (1, 128)),
        ({"groups": 1, "rows": 4096, "width": 100_000}, (1, 16)),
        ({"groups": 4096, "rows": 96, "width": 128}, (42, 96)),
        ({"groups": 4096, "rows": 4, "width": 256}, (128, 4)),
        ({"groups": 4096, "rows": 1, "width": 64, "block_rows": 32}, (2, 1)),
    ],
    ids=["wide", "few rows", "odd rows", "very wide", "heads", "few heads", "given"],
)
def test_blocks_fit(source: ModuleType, sizes: dict[str, int], wanted: tuple[int, int]) -> None:
    blocks = source.choose_blocks(**sizes)
    assert blocks[:2] == wanted
    assert blocks.vmem_bytes <= 60 * 2**20


def test_impossible_arguments_are_refused(source: ModuleType) -> None:
    with pytest.raises(ValueError, match="block_rows must be a positive multiple of 16; got 24"):
        source.choose_blocks(groups=1, rows=64, width=64, block_rows=24)
    with pytest.raises(ValueError, match="order must be one of round_then_scale"):
        hlo_interpreted(source.norm)(torch.ones(2, 8), eps=1e-5, order="scale")

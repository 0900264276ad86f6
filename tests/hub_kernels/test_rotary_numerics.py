"""The Pallas rotary kernel's numbers, in both interpreters, against the reference."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.support.today import cases_of_today, part_of_today
from tpu_kernels.lab.interpret import hlo_interpreted, race_checked
from tpu_kernels.lab.jax_source import HUB_KERNELS, load_source
from tpu_kernels.ops.rotary.cases import REPRESENTATIVES, SMALL_CASES
from tpu_kernels.ops.rotary.suite import Probe, case_probe, check_probe, edge_probes, make_probe

KERNEL = HUB_KERNELS / "rotary" / "torch-ext" / "rotary" / "kernel.py"
BFLOAT16_MODELS = ("qwen3-0.6b", "glm-4-9b", "command-r", "olmo-2-7b")
RACED = (
    "decode, half, rounded each, tables of bfloat16",
    "prefill, interleaved, rounded last, tables of float32, partial",
)


@pytest.fixture(scope="module")
def source() -> ModuleType:
    return load_source(KERNEL)


@pytest.fixture(scope="module")
def interpreted(source: ModuleType):
    return hlo_interpreted(source.rotary)


@pytest.fixture(scope="module")
def in_blocks(source: ModuleType):
    """Blocks are short, so that several probes have more than one, and a last one that reaches past the end."""
    return hlo_interpreted(source.rotary, block_positions=16)


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


@pytest.mark.parametrize("probe", [one for one in edge_probes(torch.bfloat16) if one.name in RACED], ids=name_of)
def test_no_race_and_no_memory_that_was_not_written(source: ModuleType, probe: Probe) -> None:
    assert check_probe(race_checked(source.rotary, block_positions=16), probe) is None


def test_heads_and_rows_may_take_several_steps(source: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, table_batch in (((5, 7, 40, 64), 5), ((5, 7, 40, 64), 1), ((5, 7, 1, 64), 5)):
        probe = make_probe("rows and heads", shape, 64, table_batch=table_batch, dtype=torch.bfloat16)
        whole = hlo_interpreted(source.rotary)(probe.x, probe.cos, probe.sin)
        with monkeypatch.context() as patch:
            patch.setattr(source, "BLOCK_BYTES", 2 * 48 * 128 * 4)
            cut = source.choose_blocks(batch=5, heads=7, positions=40, width=64)
            assert (cut.batch, cut.heads, cut.positions) == (1, 2, 40)
            assert torch.equal(hlo_interpreted(source.rotary)(probe.x, probe.cos, probe.sin), whole)
        assert check_probe(lambda *_, whole=whole, **__: whole, probe) is None


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({"batch": 1, "heads": 32, "positions": 256, "width": 128}, (1, 8, 256)),
        ({"batch": 1, "heads": 32, "positions": 100_000, "width": 128}, (1, 1, 2048)),
        ({"batch": 64, "heads": 1, "positions": 32, "width": 128}, (64, 1, 32)),
        ({"batch": 4, "heads": 2, "positions": 17, "width": 100_000}, (1, 1, 16)),
        ({"batch": 4, "heads": 2, "positions": 40, "width": 64, "block_positions": 16}, (4, 2, 16)),
    ],
    ids=["prefill", "long", "decode", "very wide", "given"],
)
def test_blocks_fit(source: ModuleType, sizes: dict[str, int], wanted: tuple[int, int, int]) -> None:
    blocks = source.choose_blocks(**sizes)
    assert blocks[:3] == wanted
    assert blocks.vmem_bytes <= 60 * 2**20


def test_impossible_arguments_are_refused(source: ModuleType) -> None:
    with pytest.raises(ValueError, match="block_positions must be a positive multiple of 16; got 24"):
        source.choose_blocks(batch=1, heads=1, positions=64, width=64, block_positions=24)
    x, table = torch.ones(1, 1, 2, 8), torch.ones(1, 2, 8)
    with pytest.raises(ValueError, match="layout must be one of"):
        hlo_interpreted(source.rotary)(x, table, table, layout="pairs")

"""The Pallas kernel's numbers, in the HLO interpreter, against the reference and against transformers."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager

from tests.ops.attention.test_reference import additive_mask
from tests.support.today import cases_of_today
from tpu_kernels.lab.interpret import hlo_interpreted
from tpu_kernels.ops.attention.cases import REPRESENTATIVES, SMALL_CASES, case
from tpu_kernels.ops.attention.contract import AttentionShape
from tpu_kernels.ops.attention.suite import (
    Probe,
    case_probe,
    causal_intervals,
    check_probe,
    edge_probes,
    make_probe,
)

BFLOAT16_MODELS = ("qwen3-0.6b", "gpt-oss-20b", "gemma-2-9b")


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.parametrize("one", cases_of_today(SMALL_CASES, REPRESENTATIVES), ids=name_of)
def test_cases_in_float32(interpreted, one) -> None:
    assert check_probe(interpreted, case_probe(one)) is None


@pytest.mark.parametrize("one", [one for one in SMALL_CASES if one.name.split("/")[0] in BFLOAT16_MODELS], ids=name_of)
def test_cases_in_bfloat16(interpreted, one) -> None:
    assert check_probe(interpreted, case_probe(one, torch.bfloat16)) is None


@pytest.mark.parametrize("probe", list(edge_probes()), ids=name_of)
def test_edges_in_float32(interpreted, probe: Probe) -> None:
    assert check_probe(interpreted, probe) is None


@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[:4], ids=name_of)
def test_edges_in_bfloat16(interpreted, probe: Probe) -> None:
    assert check_probe(interpreted, probe) is None


@pytest.mark.parametrize(
    "tuning",
    [{"block_k": 256, "num_buffers": 2}, {"block_k": 128, "num_buffers": 4, "block_q": 16}, {}],
    ids=str,
)
def test_tuning_changes_no_result(source, tuning) -> None:
    """Several query blocks of one chunk, a block longer than what is left of the cache, more buffers than blocks."""
    intervals = causal_intervals(32, starts=[0, 60], ends=[384, 97], window=70)
    probe = make_probe("chunk", AttentionShape(2, 4, 2, 32, 384, 64, 128), intervals, scale=0.2, sinks=True)
    assert check_probe(hlo_interpreted(source.attend, **tuning), probe) is None


def test_key_value_heads_may_take_several_steps(source, monkeypatch) -> None:
    """When the heads' buffers do not fit together, decode takes a part of the heads in each step."""
    monkeypatch.setattr(sys.modules[source.choose_blocks.__module__], "BUFFER_BUDGET", 2 * 2 * 128 * 2 * 128 * 4)
    shape = AttentionShape(2, 12, 6, 1, 256, 128, 128)
    blocks = source.choose_blocks(
        kv_heads=6, group=1, queries=2, length=256, key_dim=128, value_dim=128, itemsize=4, decode=True
    )
    assert (blocks.heads, blocks.num_buffers) == (2, 2)
    probe = make_probe("decode", shape, torch.tensor([[[3, 200]], [[0, 1]]]), scale=0.1)
    assert check_probe(hlo_interpreted(source.attend), probe) is None


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("name", "eager"), [("gpt-oss-20b", gpt_oss_eager), ("gemma-2-9b", gemma2_eager)], ids=["sinks", "softcap"]
)
def test_equals_the_eager_attention_of_transformers(interpreted, name, eager, phase) -> None:
    probe = case_probe(case(f"{name}/{phase}/small"))
    module = SimpleNamespace(
        num_key_value_groups=probe.query.shape[1] // probe.key.shape[1], sinks=probe.sinks, training=False
    )
    options = {} if probe.softcap is None else {"softcap": probe.softcap}
    wanted, _ = eager(module, probe.query, probe.key, probe.value, additive_mask(probe), scaling=probe.scale, **options)
    got = interpreted(
        probe.query,
        probe.key,
        probe.value,
        probe.bounds,
        probe.sinks,
        scale=probe.scale,
        softcap=probe.softcap,
    )
    torch.testing.assert_close(got, wanted.transpose(1, 2), atol=1e-4, rtol=1e-4)


def test_keys_outside_of_the_intervals_are_not_read(interpreted) -> None:
    """NaN in every block that no row needs does not reach the result: those blocks are never copied."""
    shape = AttentionShape(2, 4, 2, 1, 640, 128, 128)
    probe = make_probe("decode", shape, torch.tensor([[[130, 250]], [[300, 500]]]), scale=0.1)
    clean = interpreted(probe.query, probe.key, probe.value, probe.bounds, None, scale=0.1, softcap=None)
    for tensor in (probe.key, probe.value):
        tensor[0, :, :128] = torch.nan  # row 0 begins at 130: copies start at the tile of 16 before it
        tensor[0, :, 256:] = torch.nan
        tensor[1, :, :288] = torch.nan
        tensor[1, :, 544:] = torch.nan
    got = interpreted(probe.query, probe.key, probe.value, probe.bounds, None, scale=0.1, softcap=None)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)

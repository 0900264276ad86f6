"""Norm kernels broken on purpose fail the suite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.hub_kernels.test_norm_numerics import KERNEL
from tpu_kernels.lab.interpret import hlo_interpreted, race_checked
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.norm.suite import check_probe, edge_probes, make_probe

EACH = """    if each:
        values = _rounded(values, out.dtype)
    if weight"""
BROKEN = {
    "eps left out": {"mean(values * values) + eps": "mean(values * values) + 1e-30"},
    "eps outside of the root": {
        "lax.rsqrt(mean(values * values) + eps)": "1.0 / (lax.sqrt(mean(values * values)) + eps)"
    },
    "mean not taken away": {"    if center:\n": "    if False:\n"},
    "mean of the whole block": {"jnp.sum(of, axis=-1, keepdims=True) / width": "jnp.sum(of) / of.size"},
    "weight left out": {"values = values * scale": "pass"},
    "offset left out": {"        if offset:\n": "        if False:\n"},
    "bias left out": {"    if bias is not None:\n": "    if False:\n"},
    "weight before the mean": {
        "    if center:\n": (
            "    if weight is not None:\n        values = values * weight[...].astype(jnp.float32)\n    if center:\n"
        )
    },
    "row not rounded before the weight": {EACH: EACH.replace("if each", "if False")},
    "row always rounded before the weight": {EACH: EACH.replace("if each", "if True")},
    "weight with offset not rounded": {'if order != "scale_then_round"': "if False"},
    "weight with offset always rounded": {'if order != "scale_then_round"': "if True"},
    "statistics in the input's dtype": {"values = x[...].astype(jnp.float32)": "values = x[...]"},
    "the last rows left out": {"pl.cdiv(rows, blocks.rows))": "max(1, rows // blocks.rows))"},
    "the last groups left out": {"grid=(pl.cdiv(groups, blocks.groups),": "grid=(max(1, groups // blocks.groups),"},
    "the first block again": {"lambda group, row: (group, row, 0)": "lambda group, row: (group, 0, 0)"},
    "the weights of the first heads again": {"lambda group, row: (row, 0)": "lambda group, row: (0, 0)"},
}
TELLING = (
    "x [9, 5, 72]",
    "rms norm, round_then_scale, offset, 40 heads",
    "x [130, 256]",
    "rms norm, round_then_scale, offset",
    "rms norm, scale_then_round, offset",
    "layer norm, round_offset, offset, bias, by head",
    "layer norm, round_then_scale, offset, bias",
)


@pytest.fixture(scope="module")
def probes():
    """The quickest probes that together see every fault above."""
    named = {probe.name: probe for probe in edge_probes(torch.bfloat16)}
    return [named[name] for name in TELLING]


def mutant(folder: Path, changes: dict[str, str]):
    """The kernel with some of its text replaced; a text that is not there once is an error of the test."""
    text = KERNEL.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{text.count(old)} times in kernel.py: {old}"
        text = text.replace(old, new)
    path = folder / "kernel.py"
    path.write_text(text)
    return load_source(path).norm


def test_the_kernel_itself_passes_the_telling_probes(probes) -> None:
    norm = hlo_interpreted(load_source(KERNEL).norm, block_rows=32)
    assert [found for probe in probes if (found := check_probe(norm, probe))] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_fails_the_suite(tmp_path: Path, probes, name: str) -> None:
    norm = hlo_interpreted(mutant(tmp_path, BROKEN[name]), block_rows=32)
    assert next((found for probe in probes if (found := check_probe(norm, probe))), None), f"not seen: {name}"


def test_rows_that_were_not_written_are_seen(tmp_path: Path) -> None:
    change = {"out[...] = values.astype(out.dtype)": "out[:, :-1] = values.astype(out.dtype)[:, :-1]"}
    probe = make_probe("rows", (64, 128), weight=(128,))
    mismatch = check_probe(race_checked(mutant(tmp_path, change), block_rows=32), probe)
    assert mismatch is not None
    assert "are not finite" in mismatch.message

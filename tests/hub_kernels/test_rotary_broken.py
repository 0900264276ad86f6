"""Rotary kernels broken on purpose fail the suite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.hub_kernels.test_rotary_numerics import KERNEL
from tpu_kernels.lab.interpret import hlo_interpreted, race_checked
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.rotary.suite import check_probe, edge_probes, make_probe

BROKEN = {
    "turned the other way": {"[-part[..., middle:], part[..., :middle]]": "[part[..., middle:], -part[..., :middle]]"},
    "pairs turned the other way": {"-after, before)": "after, -before)"},
    "the pairs of odd numbers": {"lax.rem(lane, 2) == 0": "lax.rem(lane, 2) == 1"},
    "halves where pairs are meant": {'if layout == "half":': "if True:"},
    "pairs where halves are meant": {'if layout == "half":': "if False:"},
    "sine and cosine exchanged": {
        "product(part, cos) + product(_turned(part, layout), sin)": (
            "product(part, sin) + product(_turned(part, layout), cos)"
        )
    },
    "halves of the whole head": {"_turned(part, layout)": "_turned(values, layout)[..., :rotary_dim]"},
    "the rest left out": {"values[..., rotary_dim:]]": "0 * values[..., rotary_dim:]]"},
    "products not rounded": {'if rounding == "each" else': "if False else"},
    "products always rounded": {'if rounding == "each" else': "if True else"},
    "turned in the input's dtype": {
        "whole = factor * table[...].astype(jnp.float32)[:, None]": (
            "whole = factor * table[...].astype(out.dtype).astype(jnp.float32)[:, None]"
        )
    },
    "the last positions left out": {"pl.cdiv(positions, blocks.positions)": "max(1, positions // blocks.positions)"},
    "the first positions' table again": {"0 if one_position else position, 0)": "0, 0)"},
    "the first row's table for all": {"1 if one_batch else blocks.batch": "1", "0 if one_batch else row": "0"},
    "the table of another row": {"(0 if one_batch else row": "(0 if one_batch else pl.num_programs(0) - 1 - row"},
}
TELLING = (
    "prefill, half, rounded each, tables of bfloat16, partial",
    "prefill, interleaved, rounded last, tables of float32, partial",
    "decode, half, rounded last, tables of float32",
    "rows",
)


@pytest.fixture(scope="module")
def probes():
    """The quickest probes that together see every fault above."""
    named = {probe.name: probe for probe in edge_probes(torch.bfloat16)}
    named["rows"] = make_probe("rows", (3, 2, 48, 64), 64, dtype=torch.bfloat16)
    return [named[name] for name in TELLING]


def mutant(folder: Path, changes: dict[str, str]):
    """The kernel with some of its text replaced, in small blocks; a text that is not there once is an error here."""
    text = KERNEL.read_text()
    for old, new in {"BLOCK_BYTES = 2**20": "BLOCK_BYTES = 2**14", **changes}.items():
        assert text.count(old) == 1, f"{text.count(old)} times in kernel.py: {old}"
        text = text.replace(old, new)
    path = folder / "kernel.py"
    path.write_text(text)
    return load_source(path).rotary


def test_the_kernel_itself_passes_the_telling_probes(tmp_path: Path, probes) -> None:
    rotary = hlo_interpreted(mutant(tmp_path, {}))
    assert [found for probe in probes if (found := check_probe(rotary, probe))] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_fails_the_suite(tmp_path: Path, probes, name: str) -> None:
    rotary = hlo_interpreted(mutant(tmp_path, BROKEN[name]))
    assert next((found for probe in probes if (found := check_probe(rotary, probe))), None), f"not seen: {name}"


def test_heads_that_were_not_written_are_seen(tmp_path: Path) -> None:
    change = {"out[...] = part.astype(out.dtype)": "out[:, :, :-1] = part.astype(out.dtype)[:, :, :-1]"}
    mismatch = check_probe(race_checked(mutant(tmp_path, change)), make_probe("heads", (1, 2, 32, 64), 64))
    assert mismatch is not None
    assert "are not finite" in mismatch.message

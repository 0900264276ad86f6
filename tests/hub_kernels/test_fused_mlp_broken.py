"""Kernels broken on purpose fail the suite, each for the reason that it was broken for."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.hub_kernels.fused_mlp import SOURCE, interpreted
from tpu_kernels.lab.interpret import race_checked
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.mlp.suite import Probe, check_probe, edge_probes, make_probe

BROKEN = {
    "halves swapped": {"lambda r, i: (self.half, i, 0)": "lambda r, i: (1 - self.half, i, 0)"},
    "halves side by side: the gate twice": {"if self.half else 0": "if False else 0"},
    "what lies behind the end of down is used": {"        if valid:": "        if False:"},
    "a position too many behind the end": {"inner.shape, 1) < valid, inner, 0)": "inner.shape, 1) <= valid, inner, 0)"},
    "the last slice left out": {"pl.cdiv(intermediate, blocks.inner)": "max(1, intermediate // blocks.inner)"},
    "the last rows left out": {"pl.cdiv(rows, blocks.rows)": "max(1, rows // blocks.rows)"},
    "rows added to those of the block before": {
        "@pl.when(slice_number == 0)": "@pl.when((slice_number == 0) & (pl.program_id(0) == 0))"
    },
    "no sum over slices": {"total[...] += _dot": "total[...] = _dot"},
    "no bias of the first products": {"product if bias is None else": "product if True else"},
    "the bias of down in half": {"biases[-1][...].astype(jnp.float32)": "0.5 * biases[-1][...].astype(jnp.float32)"},
    "the gate cut on both sides": {
        "jnp.minimum(first, form.limit)": "jnp.clip(first, -form.limit / 2, form.limit)",
    },
    "up cut from above alone": {"jnp.clip(up, -form.limit, form.limit)": "jnp.minimum(up, form.limit)"},
    "the offset left out": {"if form.up_offset:": "if False:"},
    "the activation of up": {"activate(form.activation, first)) * up": "activate(form.activation, up)) * first"},
    "transposed weights as they are": {"axis = 1 if transposed else 0": "axis = 0"},
}
ROUNDED_OTHERWISE = {
    "never rounded between": {'if form.rounding == "each" else': "if False else"},
    "always rounded between": {'if form.rounding == "each" else': "if True else"},
    "the gate's product not rounded": {"    first = rounded(first)\n": "\n"},
    "up's product not rounded": {"    up = rounded(up)\n": "\n"},
}
TELLING = (
    "fused, limit, offset, round each",
    "gated, limit, offset, round each",
    "fused, 192 to 384 to 64",
    "fused, 128 to 328 to 64",
    "transposed, 130 to 300 to 8",
    "two layers, 130 to 300 to 8",
    "gated, 33 rows",
)


def mutant(folder: Path, changes: dict[str, str]) -> ModuleType:
    """The JAX file with some of its text replaced; a text that is not there once is an error of the test."""
    text = SOURCE.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{text.count(old)} times in kernel.py: {old}"
        text = text.replace(old, new)
    for name in ("activations.py", "blocks.py"):
        shutil.copy(SOURCE.with_name(name), folder)
    path = folder / "kernel.py"
    path.write_text(text)
    return load_source(path)


def telling_probes(dtype: torch.dtype = torch.float32) -> list[Probe]:
    """The quickest probes that together see every fault above."""
    edges = {probe.name: probe for probe in edge_probes(dtype)}
    return [edges[name] for name in TELLING]


def rounding_probes() -> list[Probe]:
    return [probe for probe in edge_probes(torch.bfloat16) if probe.exact and "round" in probe.name]


def first_mismatch(source: ModuleType, probes: list[Probe]) -> str | None:
    """What is wrong with the first probe that fails; a call that raises on impossible shapes fails too."""
    calls = interpreted(source, block_rows=16, block_i=128)
    return next((str(found) for probe in probes if (found := check_probe(calls, probe))), None)


def test_the_kernel_itself_passes_the_telling_probes() -> None:
    source = load_source(SOURCE)
    assert first_mismatch(source, telling_probes()) is None
    assert first_mismatch(source, rounding_probes()) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_fails_the_suite(tmp_path: Path, name: str) -> None:
    source = mutant(tmp_path, BROKEN[name])
    probes = telling_probes()
    if name == "transposed weights as they are":
        probes = [make_probe("square", (3,), 64, 64, 64, "gelu", gated=False, transposed=True)]
    assert first_mismatch(source, probes) is not None, f"the suite does not see: {name}"


@pytest.mark.parametrize("name", ROUNDED_OTHERWISE)
def test_another_order_of_roundings_fails_the_suite(tmp_path: Path, name: str) -> None:
    mismatch = first_mismatch(mutant(tmp_path, ROUNDED_OTHERWISE[name]), rounding_probes())
    assert mismatch is not None, f"the suite does not see: {name}"


@pytest.mark.parametrize(
    "change",
    [
        {"        total[...] = jnp.zeros(total.shape, jnp.float32)": "        pass"},
        {"        if valid:": "        if False:"},
        {"        out[...] = result.astype(out.dtype)": "        pass"},
    ],
    ids=["the sum", "behind the end of a weight", "the result"],
)
def test_memory_that_was_never_written_is_seen(tmp_path: Path, change: dict[str, str]) -> None:
    """The interpreter that simulates memory fills it with NaN first."""
    calls = interpreted(mutant(tmp_path, change), race_checked, block_rows=16, block_i=128)
    probe = make_probe("rests", (17,), 64, 200, 64, "silu")
    mismatch = check_probe(calls, probe)
    assert mismatch is not None
    assert "are not finite" in mismatch.message

"""Kernels broken on purpose fail the suite, each for the reason that it was broken for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hub_kernels.test_grouped_experts_few import BLOCK_BYTES, KERNEL
from tpu_kernels.lab.interpret import KernelRaceError, hlo_interpreted, race_checked
from tpu_kernels.lab.jax_source import load_source
from tpu_kernels.ops.experts.cases import case
from tpu_kernels.ops.experts.suite import Probe, case_probe, check_probe, edge_probes

ABSENT, WIDE_WEIGHTS, RUNS = "experts of another device", "experts of another device, float32 weights", "runs of 0"
ONE_TOKEN, TRANSPOSED, LAST = "one token", "gpt-oss-20b/decode/small", "relu2, rounding last"
FEW: dict[str, tuple[str, dict[str, str]]] = {
    "gate and up swapped": (ABSENT, {"(0, 1))\n                pieces": "(1, 0))\n                pieces"}),
    "limit of the gate left out": (ABSENT, {"return first if gate.limit is None": "return first if True"}),
    "limit of up left out": (ABSENT, {"return up if gate.limit is None": "return up if True"}),
    "offset left out": (ABSENT, {"up = up + gate.up_offset if gate.up_offset else up": "pass"}),
    "rounded once": (ABSENT, {'if gate.rounding == "each":': "if False:"}),
    "rounded at each step": (LAST, {'if gate.rounding == "each":': "if True:"}),
    "the product not rounded before its bias": (
        TRANSPOSED,
        {"part = product[rows, pl.ds(start, size)].astype(dtype)": "part = product[rows, pl.ds(start, size)]"},
    ),
    "first bias of another expert": (
        ABSENT,
        {"_bias_of(expert, self.up_biases": "_bias_of(expert - 1, self.up_biases"},
    ),
    "second bias left out": (
        ABSENT,
        {"        if self.down_bias is not None:\n            part": "        if False:\n            part"},
    ),
    "contributions not rounded": (ABSENT, {"if weights.dtype == dtype:": "if False:"}),
    "contributions always rounded": (WIDE_WEIGHTS, {"if weights.dtype == dtype:": "if True:"}),
    "rows of others get a share": (
        ABSENT,
        {"jnp.where(chosen, part, 0.0)": "part + jnp.where(chosen, 0.0, 1e-2)"},
    ),
    "an expert is visited for each of its tokens": (
        ABSENT,
        {"new = jnp.where(valid, 1 - seen[place], 0)": "new = jnp.where(valid, 1, 0)"},
    ),
    "the last pair is not seen": (ONE_TOKEN, {"lax.fori_loop(0, count, note,": "lax.fori_loop(0, count - 1, note,"}),
    "sums of blocks of rows start anew": (TRANSPOSED, {"jnp.where(number == 0, 0.0, target[at])": "0.0"}),
    "blocks of another visit": (
        ABSENT,
        {"buffer = ring.take(visit * weight.steps + number)": "buffer = ring.take(number)"},
    ),
}
MANY: dict[str, tuple[str, dict[str, str]]] = {
    "rows of the expert before are overwritten": (
        RUNS,
        {"jnp.where(above, carried[...], out[slot, 0:ROWS])": "out[slot, 0:ROWS]"},
    ),
    "the last rows are not written": (
        LAST,
        {"jnp.where(number == visits - 1, blocks,": "jnp.where(number == visits, blocks,"},
    ),
    "a run longer than a tile is cut off": (
        RUNS,
        {"stop = jnp.minimum(last, first_block(row) * ROWS + tile)": "stop = last"},
    ),
    "sentinels are the last expert": (
        ABSENT,
        {
            "experts_of < count), experts_of, count)": "experts_of < count), experts_of, count - 1)",
            "jnp.where(valid[..., None], each, 0)": "each",
        },
    ),
    "rows in the order of experts": (RUNS, {"_rows_at(results, place)": "_rows_at(results, order)"}),
    "rows of another visit": (
        RUNS,
        {"lax.rem(visit, 2), first_block(begin[visit])": "lax.rem(visit, 2), first_block(begin[0])"},
    ),
}


def mutant(folder: Path, changes: dict[str, str]) -> Any:
    """The kernel with some of its text replaced; a text that is not there once is an error of the test."""
    text = KERNEL.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{text.count(old)} times in kernel.py: {old}"
        text = text.replace(old, new)
    for name in ("blocks.py", "activations.py"):
        shutil.copy(KERNEL.with_name(name), folder)
    path = folder / "kernel.py"
    path.write_text(text)
    return load_source(path).experts


@pytest.fixture(scope="module")
def probes() -> dict[str, Probe]:
    """The quickest probe that sees a fault, by name; in bfloat16, where roundings show too."""
    found = {probe.name: probe for probe in edge_probes(torch.bfloat16)}
    found[RUNS] = next(probe for probe in edge_probes() if probe.name.startswith(RUNS))
    found[TRANSPOSED] = case_probe(case(TRANSPOSED), torch.bfloat16)
    return found


@pytest.mark.parametrize("name", [ABSENT, WIDE_WEIGHTS, ONE_TOKEN, TRANSPOSED, LAST])
def test_the_kernel_itself_passes_the_telling_probes(probes: dict[str, Probe], name: str) -> None:
    run = hlo_interpreted(load_source(KERNEL).experts, block_bytes=BLOCK_BYTES)
    assert check_probe(run, probes[name]) is None


@pytest.mark.parametrize("name", FEW)
def test_a_broken_kernel_fails_the_suite(tmp_path: Path, probes: dict[str, Probe], name: str) -> None:
    telling, changes = FEW[name]
    run = hlo_interpreted(mutant(tmp_path, changes), block_bytes=BLOCK_BYTES)
    assert check_probe(run, probes[telling]) is not None, f"the suite does not see: {name}"


@pytest.mark.parametrize("name", MANY)
def test_a_kernel_broken_for_sorted_rows_fails_the_suite(tmp_path: Path, probes: dict[str, Probe], name: str) -> None:
    telling, changes = MANY[name]
    run = hlo_interpreted(mutant(tmp_path, changes), tile=32)
    assert check_probe(run, probes[telling]) is not None, f"the suite does not see: {name}"


RACES = {
    "a copy is not waited for": {"self._copy(item, 0).wait()": "pass"},
    "a buffer is filled while it is read": {"item + (self.count - 1))": "item + self.count)"},
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_a_failure(tmp_path: Path, name: str) -> None:
    changes = dict(RACES[name])
    if "filled" in name:
        changes["for item in range(self.count - 1):"] = "for item in range(self.count):"
    run = race_checked(mutant(tmp_path, changes), copies="early", block_bytes=BLOCK_BYTES)
    with pytest.raises(KernelRaceError, match="not ordered"):
        check_probe(run, case_probe(case("qwen3-30b-a3b/decode/small")))


def test_results_that_are_written_back_too_early_are_seen(tmp_path: Path) -> None:
    changes = {
        "        products.run(number, used[number], hidden.at[slot], row_blocks)\n        wait_written(slot)\n": (
            "        products.run(number, used[number], hidden.at[slot], row_blocks)\n"
        )
    }
    probe = next(probe for probe in edge_probes() if probe.name.startswith(RUNS))
    with pytest.raises(KernelRaceError, match="not ordered"):
        check_probe(race_checked(mutant(tmp_path, changes), copies="early", tile=32), probe)

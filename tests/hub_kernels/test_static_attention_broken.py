"""Kernels broken on purpose fail the suite, each for the reason that it was broken for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpu_kernels.lab.interpret import KernelRaceError, hlo_interpreted, race_checked
from tpu_kernels.ops.attention.contract import AttentionShape
from tpu_kernels.ops.attention.suite import (
    Probe,
    causal_intervals,
    check_probe,
    edge_probes,
    make_probe,
)

MASK = "valid = (position >= jnp.maximum(row_start, wanted)) & (position < row_end)"
BROKEN = {
    "a key too many at the start": {MASK: MASK.replace("row_start, wanted", "row_start - 1, wanted")},
    "a key too few at the start": {MASK: MASK.replace("row_start, wanted", "row_start + 1, wanted")},
    "a key too many at the end": {MASK: MASK.replace("position < row_end", "position <= row_end")},
    "a key too few at the end": {MASK: MASK.replace("position < row_end", "position < row_end - 1")},
    "the moved-back block taken twice": {MASK: MASK.replace("jnp.maximum(row_start, wanted)", "row_start")},
    "the last block left out": {"lax.div(end - first + (block_k - 1), block_k)": "lax.div(end - first, block_k)"},
    "softcap left out": {"if softcap is not None:": "if False:"},
    "softcap before the scale": {
        "score = score * scale": "pass",
        "* softcap\n": "* softcap * scale\n",
    },
    "sinks left out of the sum": {"(rows, LANES), 1 / LANES, ": "(rows, LANES), 0.0, "},
    "sinks left out": {"        if sinks is None:": "        if True:"},
    "scale off by two percent": {"score = score * scale": "score = score * (scale * 1.02)"},
    "wrong group in decode": {
        "query.reshape(batch, kv_heads, 1, group, key_dim)": (
            "query.reshape(batch, group, kv_heads, 1, key_dim).transpose(0, 2, 3, 1, 4)"
        )
    },
    "wrong group in prefill": {
        "query.reshape(batch, kv_heads, group, queries, key_dim)": (
            "query.reshape(batch, group, kv_heads, queries, key_dim).swapaxes(1, 2)"
        )
    },
    "no decay of what was summed before": {"weighted[part] * _to_width(decay, weighted.shape[2])": "weighted[part]"},
    "an empty row divides by zero": {"jnp.where(norm == 0.0, 1.0, norm)": "norm"},
}


FIRST = {
    "the moved-back block taken twice": "decode, edges",
    "an empty row divides by zero": "decode, edges",
    "wrong group in prefill": "prefill, edges, window and sinks",
}
"""Where another probe than the first sees it, that one."""


def telling_probes() -> Iterator[Probe]:
    """The quickest probes that together see every fault above."""
    edges = {probe.name: probe for probe in edge_probes()}
    yield edges["decode, edges, sinks and softcap"]
    yield edges["prefill, edges, window and sinks"]
    yield edges["prefill, edges"]
    yield edges["decode, edges"]


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    return list(telling_probes())


def test_the_kernel_itself_passes_the_telling_probes(interpreted, probes) -> None:
    assert [mismatch for probe in probes if (mismatch := check_probe(interpreted, probe))] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_fails_the_suite(mutant, probes, name: str) -> None:
    attend = hlo_interpreted(mutant(BROKEN[name]).attend, block_k=128)
    ordered = sorted(probes, key=lambda probe: probe.name != FIRST.get(name))
    mismatch = next((found for probe in ordered if (found := check_probe(attend, probe))), None)
    assert mismatch is not None, f"the suite does not see: {name}"


def small_chunk() -> Probe:
    intervals = causal_intervals(16, starts=[0, 3], ends=[300, 130])
    return make_probe("chunk", AttentionShape(2, 2, 2, 16, 384, 128, 128), intervals, scale=0.2)


RACES = {
    "a copy is not waited for": {"            copy.wait()": "            pass"},
    "a buffer is filled while it is read": {
        "for _ in range(num_buffers - 1):": "for _ in range(num_buffers):",
    },
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_a_failure(mutant, name: str) -> None:
    attend = race_checked(mutant(RACES[name]).attend, copies="early", block_k=128)
    with pytest.raises(KernelRaceError, match="not ordered"):
        check_probe(attend, small_chunk())


@pytest.mark.parametrize(
    "change",
    [
        RACES["a copy is not waited for"],
        {"weighted[head] = jnp.zeros(weighted.shape[1:], jnp.float32)": "pass"},
    ],
    ids=["copied too late", "never written"],
)
def test_memory_that_was_not_written_yet_is_seen(mutant, change: dict[str, str]) -> None:
    mismatch = check_probe(race_checked(mutant(change).attend, block_k=128), small_chunk())
    assert mismatch is not None
    assert "are not finite" in mismatch.message


def test_after_a_failure_the_interpreter_is_usable(source, mutant) -> None:
    broken = race_checked(mutant(RACES["a buffer is filled while it is read"]).attend, block_k=128)
    with pytest.raises(KernelRaceError):
        check_probe(broken, small_chunk())
    assert check_probe(race_checked(source.attend, block_k=128), small_chunk()) is None

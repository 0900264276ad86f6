"""The findings of the demonstration: what counts as equal, and what holds."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from tpu_kernels.demo.findings import Findings, Generated
from tpu_kernels.demo.show import show


def _run(tokens: tuple[int, ...], compilations: int, length: int = 7) -> Generated:
    return Generated("a [prompt]", length, tokens, f" wrote {len(tokens)} tokens", compilations, 0.5)


GOOD = Findings(
    report="tpu-kernels: 4 of 4 layers swapped",
    fallbacks=(),
    unit="XLA compilations",
    ours=(_run((1, 2, 3), 3), _run((4, 5, 6), 0, length=58)),
    plain=(_run((1, 2, 3), 105), _run((4, 5, 6), 82, length=58)),
)


def _printed(findings: Findings) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    show(findings, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_we_promise_holds_and_is_printed() -> None:
    assert GOOD.hold
    assert GOOD.first_difference is None
    assert GOOD.recompilations == (0, 82)
    printed = _printed(GOOD)
    assert "tpu-kernels: 4 of 4 layers swapped" in printed
    assert "a [prompt] -> wrote 3 tokens" in printed
    assert "Tokens equal plain SDPA's: yes, all 6." in printed
    assert "XLA compilations after the first call: 0 with tpu-kernels, 82 plain." in printed
    row = next(line for line in printed.splitlines() if "58" in line)
    assert row.split("│")[1:4] == [f"{'58':>14} ", f"{'82':>19} ", f"{'0':>17} "]


@pytest.mark.parametrize(
    ("tokens", "where"),
    [
        ((4, 9, 6), "after the prompt of 58 tokens, at new token 2"),
        ((4, 5), "after the prompt of 58 tokens, at new token 3"),
        ((4, 5, 6, 7), "after the prompt of 58 tokens, at new token 4"),
    ],
)
def test_another_token_is_found(tokens: tuple[int, ...], where: str) -> None:
    findings = dataclasses.replace(GOOD, ours=(GOOD.ours[0], _run(tokens, 0, length=58)))
    assert findings.first_difference == where
    assert not findings.hold
    assert f"Tokens equal plain SDPA's: no, they part {where}." in _printed(findings)


def test_a_recompilation_does_not_hold() -> None:
    findings = dataclasses.replace(GOOD, ours=(GOOD.ours[0], _run((4, 5, 6), 1, length=58)))
    assert not findings.hold
    assert "1 with tpu-kernels" in _printed(findings)


def test_a_fallback_does_not_hold_and_is_named() -> None:
    findings = dataclasses.replace(GOOD, fallbacks=("model.layers.0.self_attn, decode: sdpa (dtype)",))
    assert not findings.hold
    assert "No kernel ran in model.layers.0.self_attn, decode: sdpa (dtype)" in _printed(findings)

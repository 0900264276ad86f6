"""Costs of the bundled kernel: what must hold whatever the figures are."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tpu_kernels import KernelSpec, load_registry
from tpu_kernels.chips import chip
from tpu_kernels.errors import KernelLoadError, StackError
from tpu_kernels.lab.cost.command import KernelReport
from tpu_kernels.lab.cost.compare import Comparison, costs
from tpu_kernels.lab.cost.subject import Subject, attention_subject, kernel_source
from tpu_kernels.lab.cost.timing import hbm_bandwidth
from tpu_kernels.lab.cost.xla_time import ProgramCost
from tpu_kernels.lab.jax_source import STATIC_ATTENTION
from tpu_kernels.lab.kernel_cases import chosen_cases
from tpu_kernels.ops.attention.cases import case
from tpu_kernels.specs import HubSource

DECODE = case("qwen3-0.6b/decode").resized(batch=2, max_len=8192)
PREFILL = case("qwen3-0.6b/prefill")
WINDOW = case("gpt-oss-20b/decode").resized(batch=1)
LENGTHS = (512, 2048, 8192)


def subject(which: str, length: int, **tuning: int) -> Subject:
    cases = {"decode": DECODE, "prefill": PREFILL, "window": WINDOW}
    return attention_subject(cases[which], STATIC_ATTENTION, "bfloat16", length, **tuning)


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_registry().get("attention/static-attention")


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, int], Comparison]:
    calls = {("decode", length): subject("decode", length) for length in LENGTHS}
    calls |= {("prefill", 4096): subject("prefill", 4096), ("window", 4096): subject("window", 4096)}
    calls |= {("refused", 512): subject("decode", 512, block_k=100)}
    calls |= {("guessed", 512): replace(subject("decode", 512), values={})}
    xla = ProgramCost((), 1e-3, chip("v6e"))
    return dict(zip(calls, costs(list(calls.values()), "v6e", [xla] * len(calls)), strict=True))


def test_bounds_of_a_call() -> None:
    assert DECODE.resized(length=512).bounds() == [[0, 512]]
    assert WINDOW.resized(length=4096).bounds() == [[4096 - 128, 4096]]
    chunk = PREFILL.resized(length=1000).bounds()
    assert (len(chunk), chunk[0], chunk[-1]) == (256, [0, 745], [0, 1000])


def test_what_a_call_needs_at_least() -> None:
    call = subject("decode", 512)
    assert call.needed_bytes == 2 * 2 * (8 * 512 * 256 + 16 * 256)
    assert call.needed_flops == 2 * 2 * 16 * 512 * 256
    assert subject("window", 4096).needed_bytes == 2 * (8 * 128 * 128 + 64 * 128)


@pytest.mark.parametrize("length", [0, 255, 4097])
def test_a_length_that_does_not_fit(length: int) -> None:
    with pytest.raises(ValueError, match=r"256 \(the new tokens\) to 4096 \(the cache\)"):
        subject("prefill", length)


def test_a_decode_step_reads_what_is_valid(results: dict[tuple[str, int], Comparison]) -> None:
    times = []
    for length in LENGTHS:
        kernel = results["decode", length].kernel
        assert kernel is not None and kernel.unknown_branches == 0
        assert kernel.read_bytes + kernel.written_bytes == pytest.approx(
            subject("decode", length).needed_bytes, rel=0.01
        )
        assert 0 < kernel.share_of_limit <= 1
        times.append(kernel.seconds)
    assert times == sorted(times)
    # From 2048 to 8192 positions the additional time is that of the additional bytes, give or take a tenth.
    more = 2 * 2 * 8 * 6144 * 256 / hbm_bandwidth(chip("v6e"))
    assert times[2] - times[1] == pytest.approx(more, rel=0.1)


def test_turns_of_the_inner_loop_are_blocks(results: dict[tuple[str, int], Comparison]) -> None:
    steps = [kernel.steps for length in LENGTHS if (kernel := results["decode", length].kernel)]
    assert [count // steps[0] for count in steps] == [1, 4, 16]


def test_a_window_keeps_the_kernel_from_the_rest_of_the_cache(results: dict[tuple[str, int], Comparison]) -> None:
    kernel = results["window", 4096].kernel
    assert kernel is not None
    assert kernel.read_bytes < 8 * 1024 * 128 * 2 * 2


def test_copies_of_several_strides_count_too(results: dict[tuple[str, int], Comparison]) -> None:
    """Head size 64 on tpu7x: the compiler writes such copies in a form that does not name its ends."""
    (result,) = costs([subject("window", 4096)], "tpu7x", [None])
    same = results["window", 4096].kernel
    assert result.kernel is not None and same is not None
    assert result.kernel.read_bytes == pytest.approx(same.read_bytes, rel=0.1)


def test_prefill_is_bound_by_the_matrix_unit(results: dict[tuple[str, int], Comparison]) -> None:
    kernel = results["prefill", 4096].kernel
    assert kernel is not None
    assert kernel.limited_by == "MXU"
    assert kernel.spilled_slots > 0
    assert kernel.utilization["MATMUL"] > 0.1


def test_a_case_that_does_not_compile_has_its_reason(
    spec: KernelSpec, results: dict[tuple[str, int], Comparison], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = results["refused", 512]
    assert refused.kernel is None and refused.ratio is None
    KernelReport([(spec, [refused])]).show(Console(highlight=False, width=200))
    assert "block_k must be a positive multiple of 128; got 100" in capsys.readouterr().out


def test_a_guess_is_said(
    spec: KernelSpec, results: dict[tuple[str, int], Comparison], capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = results["guessed", 512].kernel
    assert kernel is not None and kernel.complete
    KernelReport([(spec, [results["guessed", 512]])]).show(Console(highlight=False, width=200))
    assert f"{kernel.unknown_branches} branches of the kernel were guessed" in capsys.readouterr().out


def test_report_in_every_form(spec: KernelSpec, results: dict[tuple[str, int], Comparison], tmp_path: Path) -> None:
    report = KernelReport([(spec, list(results.values()))])
    rows = json.loads(report.json())
    assert len(rows) == len(results)
    assert {row["chip"] for row in rows} == {"v6e"}
    assert rows[0]["ratio"] == pytest.approx(rows[0]["xla_us"] / rows[0]["kernel_us"])
    report.plot(tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    report.page(tmp_path / "costs.html")
    page = (tmp_path / "costs.html").read_text()
    assert "attention/static-attention" in page and "<svg" in page and "qwen3-0.6b/decode" in page
    loaded = re.findall(r"""(?:src|href)=["']?(?!#)([^"'> ]+)|url\((?!#)([^)]*)\)|@import|<script|<link""", page)
    assert loaded == []


def test_tables_fit_eighty_columns(
    spec: KernelSpec, results: dict[tuple[str, int], Comparison], capsys: pytest.CaptureFixture[str]
) -> None:
    KernelReport([(spec, list(results.values()))]).show(Console(highlight=False, width=80))
    out = capsys.readouterr().out
    assert "qwen3-0.6b/decode" in out and "gpt-oss-20b/decode" in out
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out


def test_cases_by_name(spec: KernelSpec) -> None:
    assert [one.name for one in chosen_cases(spec, ["phi-4"])] == ["phi-4/decode", "phi-4/prefill"]
    assert len(chosen_cases(spec)) == 3
    with pytest.raises(ValueError, match="there is no such case"):
        chosen_cases(spec, ["phi-4/decode", "phi-5"])


def test_a_kernel_on_the_hub_has_no_source_here(spec: KernelSpec) -> None:
    assert kernel_source(spec) == STATIC_ATTENTION
    hub = spec.model_copy(update={"source": HubSource(repo="org/kernel", version=1)})
    with pytest.raises(KernelLoadError, match="cannot be compiled by itself"):
        kernel_source(hub)


def test_pictures_say_what_they_need(spec: KernelSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(StackError, match="need matplotlib"):
        KernelReport([(spec, [])]).plot(tmp_path / "costs.png")

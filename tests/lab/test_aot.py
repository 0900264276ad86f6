"""libtpu compiles the kernels for each generation, in processes of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.today import part_of_today
from tpu_kernels.errors import CompileError
from tpu_kernels.lab import aot, processes
from tpu_kernels.lab.aot import AotJob, AotResult, compile_jobs, op_jobs
from tpu_kernels.lab.aot_worker import moved_bytes
from tpu_kernels.lab.jax_source import STATIC_ATTENTION
from tpu_kernels.ops.attention.cases import CASES, REPRESENTATIVES, case
from tpu_kernels.ops.case import OpCase

FLOAT32_MODELS = ("gpt-oss-20b", "phi-3-mini", "deepseek-v2-lite")


def attention_jobs(
    cases: Iterable[OpCase] = CASES, dtypes: Sequence[str] = ("bfloat16",), **tuning: int
) -> list[AotJob]:
    return op_jobs(cases, dtypes, kernel=STATIC_ATTENTION, **tuning)


def cache_bytes(job: AotJob) -> int:
    """Of the key cache of an attention job."""
    shape, dtype = job.arguments[1]
    return math.prod(shape) * (2 if dtype == "bfloat16" else 4)


def allowed_bytes(job: AotJob) -> int:
    """Twice the queries, for them and the results, and some for bounds and sinks."""
    shape, dtype = job.arguments[0]
    return 2 * math.prod(shape) * (2 if dtype == "bfloat16" else 4) + 2**17


@pytest.mark.parametrize("turn", range(len(aot.GENERATIONS)), ids=aot.GENERATIONS)
def test_every_named_case_compiles(turn: int) -> None:
    """What differs in kind, in bfloat16 as models run, on every generation; each other case, and some in float32, on
    one of them, another every day (`--all` has all of them)."""
    kinds = [one for one in CASES if one.name.split("/")[0] in REPRESENTATIVES]
    others = part_of_today([one for one in CASES if one not in kinds], 3, turn)
    (wide,) = part_of_today(FLOAT32_MODELS, 3, turn)
    wides = [one for one in CASES if one.name.split("/")[0] == wide]
    results = compile_jobs(
        attention_jobs([*kinds, *others]) + attention_jobs(wides, dtypes=["float32"]), aot.GENERATIONS[turn]
    )
    assert [f"{result.job.name}: {result.error}" for result in results if not result.ok] == []
    # The cache is read where it lies. (Queries and results are copied into the kernel's layout, and are no larger.)
    assert [result.job.name for result in results if result.moved_bytes > allowed_bytes(result.job)] == []


@pytest.fixture(scope="module")
def odd_results() -> list[AotResult]:
    """One that takes too much VMEM, the same with its own blocks, blocks that the kernel refuses, an odd length."""
    decode = replace(case("qwen3-8b/decode"), shape=replace(case("qwen3-8b/decode").shape, length=16384))
    odd = replace(case("llama-3.2-1b/decode"), shape=replace(case("llama-3.2-1b/decode").shape, length=4000))
    large = attention_jobs([decode], block_k=8192, num_buffers=16)
    refused = attention_jobs([case("phi-4/decode")], block_k=100)
    return compile_jobs([*large, *attention_jobs([decode]), *refused, *attention_jobs([odd])], "v5e")


def test_a_kernel_that_overflows_vmem_fails_with_one_line(odd_results: list[AotResult]) -> None:
    assert [result.ok for result in odd_results[:2]] == [False, True]
    error = odd_results[0].error
    assert error is not None
    assert "vmem" in error.lower()
    assert "\n" not in error
    assert len(error) <= 240


def test_a_case_that_the_kernel_refuses_says_so(odd_results: list[AotResult]) -> None:
    assert odd_results[2].error == "ValueError: block_k must be a positive multiple of 128; got 100"


def test_a_cache_length_off_the_tiles_costs_a_copy(odd_results: list[AotResult]) -> None:
    """Why specs ask for a multiple of 128: any other length compiles, and copies keys and values at each call."""
    result = odd_results[3]
    assert result.ok
    assert result.moved_bytes >= 2 * cache_bytes(result.job)


def test_a_compiler_that_dies_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deadly = tmp_path / "kernel.py"
    deadly.write_text("import os\n\ndef attend(x):\n    print('a telling line', flush=True)\n    os._exit(3)\n")
    fine = tmp_path / "fine.py"
    fine.write_text("def attend(x):\n    return x + 1\n")

    def job(path: Path) -> AotJob:
        return AotJob(path.stem, path, "attend", (((8, 128), "float32"),))

    results = compile_jobs([job(fine), job(deadly), job(fine)], "v5e")
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error == "the compiler died: a telling line"
    monkeypatch.setattr(processes, "MAX_DEATHS", 1)
    with pytest.raises(CompileError, match="libtpu died on 2 of 2 kernels"):
        compile_jobs([job(deadly)] * 3, "v5e")


def test_a_compiler_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="could not be started to compile for v6e:2x2"):
        compile_jobs(attention_jobs([case("phi-4/decode")]), "v6e")


def test_too_slow_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"took more than 0 s"):
        compile_jobs(attention_jobs([case("phi-4/decode")]), "v6e", timeout=0.01)


def test_unknown_generation() -> None:
    with pytest.raises(ValueError, match="not known"):
        compile_jobs([], "v9")


def test_moved_bytes_counts_what_xla_writes_around_a_kernel() -> None:
    hlo = """HloModule m
%fused (p: bf16[8,128]) -> bf16[8,128] {
  ROOT %copy.9 = bf16[8,128]{1,0} copy(%p)
}

ENTRY %main (k: bf16[8,128]) -> f32[4] {
  %k = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[128,8]{0,1} bitcast(%k)
  %copy-start = (bf16[8,128]{1,0:S(1)}, bf16[8,128]{1,0}, u32[]{:S(2)}) copy-start(%k)
  %copy-done = bf16[8,128]{1,0:S(1)} copy-done(%copy-start)
  %f = (s32[4]{0}, s32[4]{0}) fusion(%copy-done), kind=kLoop, calls=%fused
  ROOT %kernel = f32[4]{0} custom-call(%f, %b), custom_call_target="tpu_custom_call"
}
"""
    assert moved_bytes(hlo) == 8 * 128 * 2 + 2 * 4 * 4


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--op", "attention", "--case", "gpt-oss-20b/decode", "--generation", "tpu7x", "--dtype", "bfloat16"]
    assert aot.main(wanted) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:4] == ["tpu7x", "attention/static-attention", "gpt-oss-20b/decode", "bfloat16"]
    assert line.endswith("ok")
    assert aot.main([*wanted, "--tuning", "block_k=200"]) == 1
    assert "block_k must be" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        aot.main(["--op", "attention", "--case", "qwen4"])
    assert "there is no such case" in capsys.readouterr().err

"""Captured programs compiled by libtpu, in processes of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tpu_kernels.errors import CompileError
from tpu_kernels.lab.programs import Program, compile_programs


def test_each_program_has_its_result(captured: list[Program]) -> None:
    garbage = replace(captured[0], name="garbage", stablehlo=b"ML\xefRnothing")
    bad, huge, product = compile_programs([garbage, captured[1], captured[0]], "v5e:1x1")
    assert bad.error is not None and "StableHLO" in bad.error and "\n" not in bad.error
    assert huge.error is not None and "Ran out of memory on HBM" in huge.error and "15.75G" in huge.error
    assert bad.memory is None and huge.memory is None and huge.free_bytes is None
    assert product.ok
    assert product.memory is not None
    assert product.memory.argument == (256 * 512 + 512 * 128) * 2
    assert product.memory.output == 256 * 128 * 2
    assert product.memory.alias == 0
    assert product.free_bytes == product.target.chip.usable_hbm_bytes - product.memory.total
    assert product.hlo.startswith("HloModule")
    assert "bf16[256,128]" in product.hlo


def test_dumps_of_each_program_have_a_folder(captured: list[Program], tmp_path: Path) -> None:
    (result,) = compile_programs(captured[:1], "v6e", dump_to=tmp_path / "dumps")
    assert result.ok
    assert result.dump == tmp_path / "dumps" / "product"
    assert list(result.dump.glob("*packed-bundles-post-ra*"))


def test_a_topology_that_libtpu_does_not_know(captured: list[Program]) -> None:
    with pytest.raises(CompileError, match="could not be started to compile for v6e:7x9"):
        compile_programs(captured[:1], "v6e:7x9")


@pytest.mark.parametrize("name", ["v9", "v5e:", "v5e:1by1"])
def test_a_name_that_is_no_target(name: str) -> None:
    with pytest.raises(ValueError):
        compile_programs([], name)

"""Functions and models captured in processes of their own, and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_kernels.errors import CompileError, ModelStructureError
from tpu_kernels.lab.programs import (
    FLOWS,
    FunctionCase,
    ModelCase,
    Program,
    capture_functions,
    capture_model,
    compile_programs,
)
from tpu_kernels.ops.attention.cases import case

CACHE_BYTES = 2 * 2 * 2 * 512 * 128 * 2
"""Keys and values of 2 layers of 2 heads, 512 positions of 128 bfloat16."""


def test_the_reference_of_an_op_compiles(captured: list[Program]) -> None:
    program = captured[2]
    assert program.name == "gpt-oss-20b/decode bfloat16"
    (result,) = compile_programs([program], "v6e:1x1")
    assert result.error is None
    shape = case("gpt-oss-20b/decode").shape
    assert result.memory is not None
    # Heads of 64 lie in tiles of 128.
    assert result.memory.output == shape.batch * shape.query_heads * 128 * 2


def test_a_function_that_fails_says_so() -> None:
    with pytest.raises(CompileError, match="own code failed"):
        capture_functions([FunctionCase("wrong", "torch:matmul", (((2, 3), "float32"), ((2, 3), "float32")))])


@pytest.mark.parametrize("flow", FLOWS)
def test_prefill_and_decode_of_a_model(flow: str, tiny_config: Path) -> None:
    programs = capture_model(ModelCase(str(tiny_config), flow=flow, max_len=512, prefill_chunk=64))  # type: ignore[arg-type]
    assert [program.name for program in programs] == ["prefill", "decode"]
    ours = flow == "tpu-kernels"
    assert all(program.note.startswith("2 x attention/static-attention" if ours else "") for program in programs)
    assert any(program.note for program in programs) is ours
    for result in compile_programs(programs, "v5e:1x1"):
        assert result.error is None
        assert result.memory is not None
        assert result.memory.argument > CACHE_BYTES
        assert "bf16[1,2,512,128]" in result.hlo
        assert result.hlo.count('custom_call_target="tpu_custom_call"') == 2
        # Without us it is torch_tpu's own flash attention.
        assert ("scaled_dot_product" in result.hlo) is not ours


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelStructureError, match="no model config was found"):
        capture_model(ModelCase("/no/such/folder"))

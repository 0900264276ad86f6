"""A decode step of a model divided over two chips: one program on each, with its collectives inside."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tests.lab.programs.conftest import TINY
from tpu_kernels.chips import chip
from tpu_kernels.emulator.programs import readable
from tpu_kernels.lab.cost.dumps import read_dumps
from tpu_kernels.lab.cost.hlo import parse_hlo
from tpu_kernels.lab.cost.model_cost import by_group
from tpu_kernels.lab.cost.model_groups import StepGroups
from tpu_kernels.lab.cost.xla_time import program_cost
from tpu_kernels.lab.programs import ModelCase, Program, capture_model, compile_programs

HIDDEN, FFN, VOCABULARY, HEAD = 128, 256, 512, 128
COLLECTIVES = 1 + 2 + 1
"""The sums of the embedding, of attention and of the MLP of the one layer, and the logits put together."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> ModelCase:
    file = tmp_path_factory.mktemp("divided") / "config.json"
    file.write_text(json.dumps({**TINY, "num_hidden_layers": 1, "tie_word_embeddings": False}))
    return ModelCase(str(file), steps=("decode",), max_len=256, generation="v6e", tp_size=2)


@pytest.fixture(scope="module")
def program(case: ModelCase) -> Program:
    (program,) = capture_model(case)
    return program


def _text(program: Program) -> str:
    """The program without the numbers of its values."""
    with readable(program.stablehlo) as module:
        text = str(module)
    return re.sub(r"%\w+", "%", text)


def test_all_ranks_have_the_same_program(case: ModelCase, program: Program) -> None:
    (other,) = capture_model(dataclasses.replace(case, rank=1))
    assert _text(other) == _text(program)
    assert program.runs == other.runs == 1
    assert program.note.startswith("1 x attention/static-attention")


def test_without_spmd_safe_it_is_cut_at_every_collective(case: ModelCase) -> None:
    cut = capture_model(dataclasses.replace(case, flow="plain", spmd_safe=False))
    assert sum(program.runs for program in cut) == 2 * COLLECTIVES + 1


def test_it_compiles_and_has_a_cost(program: Program, tmp_path: Path) -> None:
    (result,) = compile_programs([program], "v6e:2x2", dump_to=tmp_path)
    assert result.error is None and result.memory is not None and result.dump is not None
    assert result.hlo.count(" all-reduce(") + result.hlo.count(" all-gather(") == COLLECTIVES
    assert result.hlo.count('custom_call_target="tpu_custom_call"') == 1
    # Half of every matrix, and of the heads in the cache.
    attention = HIDDEN * HEAD * (4 + 2 + 2 + 4)
    weights = (attention + 3 * HIDDEN * FFN + 2 * VOCABULARY * HIDDEN) // 2 * 2
    cache = 2 * 1 * 256 * HEAD * 2
    assert result.memory.argument == pytest.approx(weights + cache, rel=0.05)

    cost = program_cost(result.hlo, read_dumps(result.dump), chip("v6e"))
    collectives = [op.collective for op in cost.ops if op.collective]
    assert [one.ranks for one in collectives] == [2] * COLLECTIVES
    assert sorted(one.bytes for one in collectives) == [HIDDEN * 2] * 3 + [VOCABULARY * 2]
    groups = by_group(cost, StepGroups(parse_hlo(result.hlo)))
    assert groups["collectives"].seconds == pytest.approx(sum(op.seconds for op in cost.ops if op.collective))
    # Each waits twice for a neighbour at least.
    assert groups["collectives"].seconds > COLLECTIVES * 2e-6
    assert cost.seconds_apart < cost.seconds

"""One process in the place of a rank: programs as torch_tpu writes them for chips of a slice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.emulator.processes import python

SCRIPT = """
import json, sys
from tpu_kernels import emulator
emulator.start(rank=int(sys.argv[1]), ranks=4)
import torch
import torch.distributed as dist
from tpu_kernels.emulator.programs import readable

def step(x):
    for _ in range(2):
        x = x * 2
        dist.all_reduce(x)
    return x + 1

found = {"rank": dist.get_rank(), "ranks": dist.get_world_size()}
for name, function in ("cut", step), ("whole", torch.tpu.distributed.spmd_safe(step)):
    with emulator.capture() as programs, torch.no_grad():
        x = torch.empty(8, 128, device="tpu")
        torch.compile(function, backend="tpu", dynamic=False, fullgraph=True)(x)
    texts = []
    for program in programs:
        with readable(program.stablehlo) as module:
            texts.append(str(module))
    found[name] = [texts[number] for number in programs.runs if programs[number].name != "tt_jit_empty"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    done = [python("-c", SCRIPT, str(rank)) for rank in (0, 3)]
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    return [json.loads(process.stdout.splitlines()[-1]) for process in done]


def test_each_process_is_its_rank_of_four(ranks: list[dict[str, Any]]) -> None:
    assert [(one["rank"], one["ranks"]) for one in ranks] == [(0, 4), (3, 4)]


def test_a_graph_is_cut_at_every_collective_but_not_where_it_is_spmd_safe(ranks: list[dict[str, Any]]) -> None:
    assert [text.count("stablehlo.all_reduce") for text in ranks[0]["cut"]] == [0, 1, 0, 1, 0]
    (whole,) = ranks[0]["whole"]
    assert whole.count("stablehlo.all_reduce") == 2
    assert "dense<[[0, 1, 2, 3]]>" in whole


def test_all_ranks_have_the_same_programs(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["whole"] == ranks[1]["whole"]
    assert ranks[0]["cut"] == ranks[1]["cut"]

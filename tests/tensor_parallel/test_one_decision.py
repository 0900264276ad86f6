"""What happens to one rank alone is decided for all of them: the same kernels, the same report, the right tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kernels import copy_of_bundled, edit
from tests.tensor_parallel.launching import launch
from tests.tensor_parallel.test_equal import write

_FLAG = 'import os\n\nON_RANK_1 = os.environ["RANK"] == "1"\n'
_FUTURE = "from __future__ import annotations\n"
_CHECK = "    _check(query, key, value, bounds, sinks)\n"
_CALL = "    rows = inner_group * blocks.block_q\n    out = pl.pallas_call("
_NO_INTERPRETER = "    if ON_RANK_1:\n        pltpu.set_tpu_interpret_mode(None)\n"
_END = "    )(spans.reshape(-1), *operands)\n"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, kernels = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("kernels")
    write("llama-3.1-8b", folder)
    copies = {name: copy_of_bundled(kernels / name) for name in ("whole", "broken", "traced", "compiled")}
    edit(copies["broken"], "__init__.py", "from ", "raise ImportError('not here')\nfrom ")
    edit(copies["traced"], "op.py", _CHECK, f'{_CHECK}    if ON_RANK_1:\n        raise RuntimeError("no luck")\n')
    edit(
        copies["compiled"],
        "kernel.py",
        _CALL,
        _NO_INTERPRETER + _CALL,
    )
    edit(copies["compiled"], "kernel.py", _END, f"{_END}    pltpu.set_tpu_interpret_mode(True)\n")
    for name, file in (("traced", "op.py"), ("compiled", "kernel.py")):
        edit(copies[name], file, _FUTURE, f"{_FUTURE}\n{_FLAG}")
    return launch(2, "disagree.py", str(folder), str(kernels), out=tmp_path_factory.mktemp("out"))


def test_a_kernel_that_one_rank_cannot_load_is_left_out_on_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (each["does not load"]["layers"] for each in ranks)
    assert first == second and all(kernel is None for kernel, _ in first)
    assert "rank 1: " in first[0][1] and "not here" in first[0][1], first


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("fails when it is traced", "no luck"),
        ("fails when it is compiled", "tpu_custom_call"),
        ("fails when it is traced in an eager call", "no luck"),
    ],
)
def test_a_kernel_that_fails_on_one_rank_is_left_out_on_all(ranks: list[dict[str, Any]], case: str, says: str) -> None:
    first, second = (each[case] for each in ranks)
    assert first == second and first["right"]
    for path, phase, chosen, reason in first["ran"]:
        assert "/" not in chosen and "rank 1: " in reason and says in reason, (path, phase, chosen, reason)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_layer_that_one_rank_changed_is_its_own_code_on_all(ranks: list[dict[str, Any]], when: str) -> None:
    first, second = (each[f"changed {when} it was compiled"] for each in ranks)
    assert first == second and first["right"]
    last = [(chosen, reason) for _, phase, chosen, reason in first["ran"] if chosen == "own code"]
    assert last and all("rank 1: " in reason and "gate_proj" in reason for _, reason in last), first["ran"]


def test_other_tokens_on_one_rank_are_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert "generate was called with different inputs on different ranks" in each["other tokens"]


def test_what_one_rank_must_run_the_plain_way_runs_so_on_all(ranks: list[dict[str, Any]]) -> None:
    first, second = (each["the plain way"] for each in ranks)
    assert first == second and first["right"]
    assert any("rank 1: the model is in training mode" in note for note in first["notes"]), first


def test_a_part_of_a_divided_model_is_summed_over_the_ranks(ranks: list[dict[str, Any]]) -> None:
    first, second = (each["a part"] for each in ranks)
    assert first == second and all("/" in chosen for _, _, chosen, _ in first), first


def test_other_arguments_on_one_rank_are_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert each["other arguments"]["untouched"]
        assert "max_cache_len=256" in each["other arguments"]["error"]
        assert "max_cache_len=257" in each["other arguments"]["error"]

"""Enabled architectures against plain transformers: a shard that changes every day, and the tool itself.

All of them: `tpu-kernels coverage --all`, whose result is docs/coverage.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import copy_of_bundled, edit, spoiled_spec
from tests.support.today import DAY
from tpu_kernels.errors import SpecError
from tpu_kernels.harness.coverage.architectures import load_architectures, right_in_plain_transformers
from tpu_kernels.harness.coverage.check import check
from tpu_kernels.harness.coverage.collect import PAGE, collect, page, select
from tpu_kernels.harness.coverage.row import Outcome, Row
from tpu_kernels.harness.coverage.run import run_all
from tpu_kernels.harness.coverage.table import cells, summary

SHARDS = 64
SPOILT = ("scale=scale, softcap=softcap, **tuning)", "scale=scale * 1.02, softcap=softcap, **tuning)")
ARCHITECTURES = load_architectures()


def _of_today() -> list[str]:
    return select([], f"{DAY % SHARDS}/{SHARDS}", False)


@pytest.mark.parametrize("name", _of_today())
def test_shard_of_today_is_equal(name: str) -> None:
    row = check(name, ARCHITECTURES[name])
    assert row.right, row


def test_a_kernel_that_is_slightly_wrong_is_not_equal(tmp_path: Path) -> None:
    repository = copy_of_bundled(tmp_path)
    edit(repository, "op.py", *SPOILT)
    row = check("llama", ARCHITECTURES["llama"], specs=[spoiled_spec(repository)], policies=["auto"])
    assert row.kernel_ran() and not row.equal and not row.padded and not row.right


def test_the_list_of_architectures() -> None:
    assert len(ARCHITECTURES) == 182
    assert len(right_in_plain_transformers(ARCHITECTURES)) == 128


def test_selection() -> None:
    every = select([], None, True)
    shards = [select([], f"{index}/{SHARDS}", False) for index in range(SHARDS)]
    assert sorted(name for shard in shards for name in shard) == sorted(every)
    assert max(map(len, shards)) <= 2
    assert select(["llama", "bloom"], None, False) == ["llama", "bloom"]
    for bad in ("3/3", "a/b", "1", "-1/4"):
        with pytest.raises(ValueError, match="a shard is I/N"):
            select([], bad, False)
    with pytest.raises(ValueError, match="one of the three"):
        select([], None, False)
    with pytest.raises(SpecError, match=r"has no nope[\s\S]*182 entries"):
        select(["nope"], None, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no list of architectures"),
        ("[]", "is not a list of architectures"),
        ('{"a": {"config": "X"}}', r"a\.model"),
    ],
)
def test_list_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "list.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_architectures(file)


def test_one_that_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = {**ARCHITECTURES["llama"].model_dump(), "static_cache_left_padded": False}
    file, rows_file = tmp_path / "list.json", tmp_path / "rows.jsonl"
    entries: dict[str, Any] = {"raises": {**good, "config": "NoSuchConfig"}, "fine": good}
    file.write_text(json.dumps(entries))
    asked: dict[str, Any] = {"file": file, "rows_file": rows_file, "policies": ["auto"]}
    rows = collect(list(entries), **asked)
    assert [row.name for row in rows] == list(entries)
    assert "NoSuchConfig" in str(rows[0].error)
    assert rows[1].right and rows[1].swapped["attention"] == 2 and rows[1].padded is None
    with rows_file.open("a") as stream:
        stream.write('{"name": "fine", "equ')  # a run that was killed while it wrote
    assert [row.name for row in collect(list(entries), **asked)] == list(entries)
    lines = [json.loads(line) for line in rows_file.read_text().splitlines() if line.endswith("}")]
    assert [line["name"] for line in lines] == ["raises", "fine", "raises"], (
        "a right row stays, an error is tried again"
    )
    assert "flow" not in lines[0] and lines[0]["run"].startswith("tpu-kernels auto, specs []")
    with pytest.raises(SpecError):
        collect(["fine"], file=file, rows_file=rows_file, specs=["nowhere.yaml"])


def test_a_process_that_dies_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text("{")
    rows = run_all(["a", "b"], file=file)
    assert [row.name for row in rows] == ["a", "b"]
    assert all("the process died (1)" in str(row.error) and "is not a list" in str(row.error) for row in rows)


ROWS = [
    Row(
        name="b",
        outcomes={
            "auto": Outcome(equal=True, padded=True, ran=("attention, decode: k",)),
            "always": Outcome(equal=True, padded=True, ran=("norm, decode: n", "norm, prefill: own code (a | b)")),
        },
        layers={"attention": 2, "norm": 3},
        swapped={"attention": 2, "norm": 1},
        kernels={"mlp/gated-mlp": 1},
        kept={"norm": {"why not": 2}},
    ),
    Row(
        name="a",
        outcomes={"auto": Outcome(equal=True), "always": Outcome(equal=False, notes=("plain way (2 x)",))},
        layers={"attention": 3},
        kept={"attention": {"why": 3}},
    ),
    Row(name="c", error="Boom: x\ny"),
]


def test_table() -> None:
    assert summary(ROWS) == (
        "2 of 3 equal (auto); 1 of 3 equal (always); left-padded batches equal in 1 of 1."
        " Architectures: attention ran by kernel in 1, norm swapped in 1, mlp swapped in 0, experts swapped in 0,"
        " rotary swapped in 0, gated MLPs in 1, two-layer MLPs in 0."
    )
    assert cells(ROWS[0])[:6] == ("b", "yes", "yes", "yes", "2 of 2", "1 of 3")
    assert cells(ROWS[0])[-1] == "norm: 2 kept: why not; norm, prefill: own code (a | b)"
    assert cells(ROWS[1]) == ("a", "yes", "NO", "-", "0 of 3", "-", "-", "-", "-", "attention: 3 kept: why; plain way")
    assert cells(ROWS[2])[1:4] == ("NO", "NO", "-") and cells(ROWS[2])[-1] == "Boom: x"
    assert [row.right for row in ROWS] == [True, False, False]
    text = page(ROWS, "tpu-kernels coverage --all")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| a", "| b", "| c"]
    assert "own code (a \\| b)" in text


def test_the_committed_page_is_of_every_architecture_and_right() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| ([\w-]+) \| (yes|NO) \| (yes|NO) \| (yes|NO|-) \|", text, re.MULTILINE)
    assert [name for name, *_ in rows] == sorted(select([], None, True))
    assert all(auto == always == "yes" for _, auto, always, _ in rows)
    padded = {name for name, _, _, answer in rows if answer == "yes"}
    assert padded == {name for name in select([], None, True) if ARCHITECTURES[name].static_cache_left_padded}
    least = {
        r"attention ran by kernel in (\d+)": 110,
        r"norm swapped in (\d+)": 110,
        r"gated MLPs in (\d+)": 90,
        r"experts swapped in (\d+)": 40,
    }
    for words, count in least.items():
        found = re.search(words, text)
        assert found is not None and int(found[1]) >= count, words
    assert torch.__version__.split("+")[0] in text

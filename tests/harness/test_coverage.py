"""Enabled architectures against plain transformers: a shard that changes every day, and the tool itself.

All of them: `tpu-kernels coverage --all`, whose result is docs/coverage.md.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kernels import copy_of_bundled, edit, spoiled_spec
from tpu_kernels.errors import SpecError
from tpu_kernels.harness.coverage.architectures import load_architectures, right_in_plain_transformers
from tpu_kernels.harness.coverage.check import check
from tpu_kernels.harness.coverage.collect import PAGE, collect, page, select
from tpu_kernels.harness.coverage.row import Row
from tpu_kernels.harness.coverage.run import run_all
from tpu_kernels.harness.coverage.table import cells, summary

SHARDS = 43
SPOILT = ("scale=scale, softcap=softcap, **tuning)", "scale=scale * 1.02, softcap=softcap, **tuning)")
ARCHITECTURES = load_architectures()


def _of_today() -> list[str]:
    return select([], f"{int(time.time() // 86400) % SHARDS}/{SHARDS}", False)


@pytest.mark.parametrize("name", _of_today())
def test_shard_of_today_is_equal(name: str) -> None:
    row = check(name, ARCHITECTURES[name])
    assert row.right, row


def test_a_kernel_that_is_slightly_wrong_is_not_equal(tmp_path: Path) -> None:
    repository = copy_of_bundled(tmp_path)
    edit(repository, "op.py", *SPOILT)
    row = check("llama", ARCHITECTURES["llama"], specs=[spoiled_spec(repository)])
    assert row.kernel_ran and not row.equal and not row.padded and not row.right


def test_the_list_of_architectures() -> None:
    assert len(ARCHITECTURES) == 182
    assert len(right_in_plain_transformers(ARCHITECTURES)) == 128


def test_selection() -> None:
    every = select([], None, True)
    shards = [select([], f"{index}/{SHARDS}", False) for index in range(SHARDS)]
    assert sorted(name for shard in shards for name in shard) == sorted(every)
    assert max(map(len, shards)) <= 3
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
    rows = collect(list(entries), file=file, rows_file=rows_file)
    assert [row.name for row in rows] == list(entries)
    assert "NoSuchConfig" in str(rows[0].error)
    assert rows[1].right and rows[1].swapped == 2 and rows[1].padded is None
    with rows_file.open("a") as stream:
        stream.write('{"name": "fine", "equ')  # a run that was killed while it wrote
    assert [row.name for row in collect(list(entries), file=file, rows_file=rows_file)] == list(entries)
    lines = [json.loads(line) for line in rows_file.read_text().splitlines() if line.endswith("}")]
    assert [line["name"] for line in lines] == ["raises", "fine", "raises"], (
        "a right row stays, an error is tried again"
    )
    assert "flow" not in lines[0] and lines[0]["run"].startswith("tpu-kernels, specs []")
    with pytest.raises(SpecError):
        collect(["fine"], file=file, rows_file=rows_file, specs=["nowhere.yaml"])


def test_a_process_that_dies_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text("{")
    rows = run_all(["a", "b"], file=file)
    assert [row.name for row in rows] == ["a", "b"]
    assert all("the process died (1)" in str(row.error) and "is not a list" in str(row.error) for row in rows)


ROWS = [
    Row(name="b", equal=True, padded=True, layers=2, swapped=2, ran=("decode: k", "prefill: sdpa (a | b)")),
    Row(name="a", equal=True, padded=None, layers=3, swapped=0, kept={"why": 3}, notes=("plain way (2 x)",)),
    Row(name="c", error="Boom: x\ny"),
]


def test_table() -> None:
    assert summary(ROWS) == "2 of 3 equal; attention ran by kernel in 1; left-padded batches equal in 1 of 1."
    assert cells(ROWS[1]) == ("a", "0 of 3", "yes", "-", "3 kept: why; plain way")
    assert cells(ROWS[2])[2:] == ("NO", "-", "Boom: x")
    text = page(ROWS, "tpu-kernels coverage --all")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| a", "| b", "| c"]
    assert "prefill: sdpa (a \\| b)" in text


def test_the_committed_page_is_of_every_architecture_and_right() -> None:
    text = PAGE.read_text()
    names = re.findall(r"^\| ([\w-]+) \| \d+ of \d+ \| (yes|NO) \| (yes|NO|-) \|", text, re.MULTILINE)
    assert [name for name, *_ in names] == sorted(select([], None, True))
    assert all(equal == "yes" for _, equal, _ in names)
    padded = {name for name, _, answer in names if answer == "yes"}
    assert padded == {name for name in select([], None, True) if ARCHITECTURES[name].static_cache_left_padded}
    swapped = re.search(r"ran by kernel in (\d+);", text)
    assert swapped is not None and int(swapped[1]) >= 110
    assert torch.__version__.split("+")[0] in text

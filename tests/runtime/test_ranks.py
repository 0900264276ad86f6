"""How ranks agree: through a real store of torch.distributed, with threads in the place of processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from tpu_kernels import RanksDisagreeError
from tpu_kernels.runtime import ranks as module
from tpu_kernels.runtime.ranks import Ranks, alone


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> list[Ranks]:
    """Two members of one group: ranks 1 and 3."""
    store = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    members = [Ranks((1, 3), rank, timedelta(seconds=2)) for rank in (1, 3)]
    monkeypatch.setattr(members[1], "_name", members[0]._name)  # one process made both
    return members


def together(pair: list[Ranks], *calls: Any) -> list[Any]:
    """What each member's call gives, or the error that it raises."""

    def run(member: Ranks, call: Any) -> Any:
        try:
            return call(member)
        except RanksDisagreeError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, pair, calls))


def test_every_member_hears_all_in_order(pair: list[Ranks]) -> None:
    for count in range(4):  # more than the exchanges that the store keeps
        said = together(pair, lambda one, n=count: one.agree("it", [n]), lambda two, n=count: two.agree("it", {"n": n}))
        assert said == [[[count], {"n": count}]] * 2


def test_what_was_agreed_once_is_not_asked_again(pair: list[Ranks]) -> None:
    together(pair, lambda one: one.agree_once("it", "key", 1), lambda two: two.agree_once("it", "key", 2))
    assert pair[0].agree_once("it", "key", "another") == [1, 2]  # without the other member


def test_two_subjects_are_an_error_on_both(pair: list[Ranks]) -> None:
    errors = together(pair, lambda one: one.agree("generate", 0), lambda two: two.agree("compiling decode", 0))
    for error in errors:
        assert isinstance(error, RanksDisagreeError)
        assert "generate" in str(error) and "compiling decode" in str(error)


def test_a_member_that_does_not_come_is_an_error_that_names_it(pair: list[Ranks]) -> None:
    with pytest.raises(RanksDisagreeError, match=r"Rank 3 did not come to the same point as rank 1: generate\."):
        pair[0].agree("generate", None)


def test_the_first_that_said_something_is_told_with_its_rank(pair: list[Ranks]) -> None:
    assert pair[0].first(["", "no luck"]) == "rank 3: no luck"
    assert pair[0].first([None, ""]) is None


def test_a_rank_alone_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "dist", None)
    assert alone().agree("it", 5) == [5] == alone().agree_once("it", "key", 5)
    assert alone().first(["no luck"]) == "no luck" and alone().is_first

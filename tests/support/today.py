"""Sweeps that are too long for every run: a part that changes every day, so that a few days see all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

DAY: Final = int(os.environ.setdefault("TPU_KERNELS_TEST_DAY", str(int(time.time() // 86400))))
"""Days since 1970. In the environment, so that processes that start before and after midnight agree, and so that a
failure of another day can be repeated: `TPU_KERNELS_TEST_DAY=20788 python -m pytest ...`."""


def part_of_today(items: Iterable[T], parts: int, turn: int = 0) -> list[T]:
    """Every `parts`-th of `items`, others tomorrow; together the turns 0 to `parts` - 1 have all of them today."""
    return [item for at, item in enumerate(items) if (at + turn + DAY) % parts == 0]


def cases_of_today(cases: Iterable[Any], always: Collection[str], parts: int = 3) -> list[Any]:
    """Those of the models `always`, and of every `parts`-th other model; a case is called "MODEL/..."."""
    cases = list(cases)
    models = dict.fromkeys(case.name.split("/")[0] for case in cases)
    chosen = {*always, *part_of_today((model for model in models if model not in always), parts)}
    return [case for case in cases if case.name.split("/")[0] in chosen]

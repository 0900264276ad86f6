"""One process in the place of one rank of a group whose other ranks are not there, for captures.

In such a process `tpu_dist` is torch_tpu's own group, not the emulator's over gloo: it writes collectives into the
programs as a TPU gets them. A group starts by telling every rank which device each of them has, through torch's store.
The store here tells this rank what the others would have said, so nobody needs to be there. No collective can run.

Imported only once torch is loaded on the emulated device.
"""

from __future__ import annotations

import atexit
import re
import warnings
from typing import Any

import torch.distributed as dist

Store: Any = dist.Store  # type: ignore[attr-defined]

_GATHERED_NODE = re.compile(r"(?P<gather>.*):node:0")
_OWN_WORD = re.compile(r"(?P<subject>.*/)(?P<rank>\d+)")
_OF_FIRST_FIELD = re.compile(rb"\d+")


class _AnsweringStore(Store):  # type: ignore[misc]
    """Says for each absent rank what this one said of itself.

    What a rank keeps under `…/rank` the others keep under their numbers too. torch_tpu gathers in rounds: a process
    counts itself in under `…:count`, writes `size:size:name:rank` and its text under `…:node:N`, reads those of all
    others, and the process of rank 0 writes all texts under `…:table`. A text begins with the number of the rank's
    device.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        self._rank, self._ranks = rank, ranks
        self._values: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value if isinstance(value, bytes) else str(value).encode()
        if node := _GATHERED_NODE.fullmatch(key):
            self._answer(node["gather"], self._values[key])
        word = _OWN_WORD.fullmatch(key)
        if word and int(word["rank"]) == self._rank:
            for rank in range(self._ranks):
                self._values[f"{word['subject']}{rank}"] = self._values[key]

    def get(self, key: str) -> bytes:
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        if key.endswith(":count"):
            return 1 if amount else self._ranks
        self._numbers[key] = self._numbers.get(key, 0) + amount
        return self._numbers[key]

    def deleteKey(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def check(self, keys: Any) -> bool:
        return True

    def wait(self, keys: Any, timeout: Any = None) -> None:
        """Everything is there at once."""

    def _answer(self, gather: str, own: bytes) -> None:
        _, name_size, rest = own.split(b":", 2)
        name, text = rest[: int(name_size)], rest[int(name_size) :]
        texts = [_OF_FIRST_FIELD.sub(b"%d" % rank, text, count=1) for rank in range(self._ranks)]
        others = [rank for rank in range(self._ranks) if rank != self._rank]
        for number, rank in enumerate(others, 1):
            renamed = name.rsplit(b":", 1)[0] + b":%d" % rank
            said = b"%d:" % len(renamed) + renamed + texts[rank]
            self._values[f"{gather}:node:{number}"] = b"%d:" % len(said) + said
        self._values[f"{gather}:table"] = b"OK\n" + b"".join(b"%d:" % len(text) + text for text in texts)


# torch keeps only its own half of a store written in Python.
_alive: list[Any] = []


def install(rank: int, ranks: int) -> None:
    """Start the default process group, in which this process is `rank` of `ranks`."""
    warnings.filterwarnings("ignore", message="barrier.*using the device under current context")
    store = _AnsweringStore(rank, ranks)
    _alive.append(store)
    dist.init_process_group("tpu_dist", store=store, rank=rank, world_size=ranks)
    # torch_tpu waits for all ranks at the end of a process that still has a group.
    atexit.register(dist.destroy_process_group)

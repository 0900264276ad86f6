"""The processes that hold the shards of one model, and how they come to one decision.

Under tensor parallelism every rank must run the same programs: one that took a fallback alone would run collectives
that nobody else joins. So whatever could differ between processes (what loaded, what a call may take, what compiled)
is told to the others before anybody acts on it. The exchange goes through the store of torch.distributed: it needs
neither the device nor tensors, so it works while a graph is traced.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Hashable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tpu_kernels.errors import RanksDisagreeError, explain

PATIENCE: Final = timedelta(minutes=20)
"""How long a rank waits for what the others say: they may still be compiling."""

_groups_made: Counter[tuple[int, ...]] = Counter()


class Ranks:
    """The ranks of one model: `members`, of which this process is `rank`. A deep copy is itself."""

    def __init__(self, members: tuple[int, ...], rank: int, patience: timedelta = PATIENCE) -> None:
        self.members = members
        self.rank = rank
        self._patience = patience
        self._asked = 0
        self._lock = threading.Lock()
        self._agreed: dict[Hashable, list[Any]] = {}
        _groups_made[members] += 1
        self._name = f"tpu_kernels/{'-'.join(map(str, members))}/{_groups_made[members]}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    @property
    def is_alone(self) -> bool:
        return len(self.members) == 1

    @property
    def is_first(self) -> bool:
        return self.rank == self.members[0]

    def agree(self, subject: str, own: Any) -> list[Any]:
        """What each member says on `subject`, in the order of `members`; `own` is what this one says (plain JSON).

        Every member must ask, about the same. Raises RanksDisagreeError where one asks about something else, or not at
        all.
        """
        if self.is_alone:
            return [own]
        with self._lock:
            self._asked += 1
            store: Any = dist.distributed_c10d._get_default_store()
            store.set(self._key(self._asked, self.rank), json.dumps([subject, own]))
            if self._asked > 2:
                # Whoever reads the last exchange has left the one before it.
                store.delete_key(self._key(self._asked - 2, self.rank))
            return [self._answer(store, subject, member) for member in self.members]

    def agree_once(self, subject: str, key: Hashable, own: Any) -> list[Any]:
        """As `agree`, but what was said for a key holds for good."""
        if self.is_alone:
            return [own]
        if key not in self._agreed:
            self._agreed[key] = self.agree(subject, own)
        return self._agreed[key]

    def _key(self, number: int, rank: int) -> str:
        return f"{self._name}/{number}/{rank}"

    def _answer(self, store: Any, subject: str, member: int) -> Any:
        key = self._key(self._asked, member)
        try:
            store.wait([key], self._patience)
            theirs, answer = json.loads(store.get(key))
        except dist.DistStoreError as error:
            raise RanksDisagreeError(
                explain(
                    f"Rank {member} did not come to the same point as rank {self.rank}: {subject}.",
                    needs="the same calls on every rank, with inputs of the same shapes",
                    got=f"no word of rank {member} in {self._patience.total_seconds():.0f} s",
                    next_step=f"look for what rank {member} does otherwise, or where it hangs (py-spy dump).",
                )
            ) from error
        if theirs != subject:
            raise RanksDisagreeError(
                explain(
                    "The ranks of this model do different things.",
                    needs="the same calls on every rank, with inputs of the same shapes",
                    got=f"rank {self.rank}: {subject}\nrank {member}: {theirs}",
                    next_step="run the same code on every rank; nothing was decided.",
                )
            )
        return answer

    def told(self, rank: int, text: str) -> str:
        """What a member said, for people: with its number where it was another one's word."""
        return text if self.is_alone else f"rank {rank}: {text}"

    def first(self, answers: list[Any]) -> str | None:
        """What the first member said that said anything, or None."""
        said = zip(self.members, answers, strict=True)
        return next((self.told(rank, each) for rank, each in said if each), None)


def alone() -> Ranks:
    """The one rank of a model that is not divided."""
    return Ranks((0,), 0)


def ranks_of(model: torch.nn.Module) -> Ranks:
    """The ranks over which transformers divided the tensors of `model`."""
    mesh: Any = getattr(model, "_device_mesh", None)
    if mesh is None:  # it stands on the outermost model alone
        meshes = (each.device_mesh for each in model.parameters() if isinstance(each, DTensor))
        mesh = next((each for each in meshes if each.mesh_dim_names != ("heads",)), None)
    elif (getattr(model, "_tp_size", None) or 1) == 1:
        return alone()
    if mesh is None:
        return alone()
    group = mesh.get_group() if mesh.ndim == 1 else mesh["tp"].get_group()
    return Ranks(tuple(dist.get_process_group_ranks(group)), dist.get_rank())

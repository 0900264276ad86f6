"""What was changed on a model's objects, so that it can be put back exactly."""

from __future__ import annotations

from typing import Any


class _Absent:
    """Stands for an instance attribute that did not exist; a deep copy of it is itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Absent:
        return self


_ABSENT = _Absent()


class Journal:
    """Instance attributes that were set, with what stood there before. `undo` restores them, last first."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, str, Any, Any]] = []

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute in the owner's own `__dict__`, past any `__setattr__`."""
        self._entries.append((owner, name, owner.__dict__.get(name, _ABSENT), value))
        owner.__dict__[name] = value

    def undo(self) -> None:
        """Put back what stood there, where what we set still stands."""
        while self._entries:
            owner, name, before, ours = self._entries.pop()
            if owner.__dict__.get(name, _ABSENT) is not ours:
                continue  # what somebody set over it since is theirs
            if before is _ABSENT:
                owner.__dict__.pop(name, None)
            else:
                owner.__dict__[name] = before

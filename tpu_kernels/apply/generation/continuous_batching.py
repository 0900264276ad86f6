"""Continuous batching pages its cache, which is not ours: while it is at work the model attends as without us."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tpu_kernels.apply.session import Session


class ContinuousBatching:
    """Keeps the original attention for as long as a manager of transformers' continuous batching may run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._managers: list[weakref.ref[Any]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> ContinuousBatching:
        """The copy of a model has no manager: the manager runs the original."""
        import copy

        return ContinuousBatching(copy.deepcopy(self._session, memo))

    @property
    def at_work(self) -> bool:
        """Whether there is a manager that has not been stopped."""
        self._managers = [each for each in self._managers if each() is not None]
        return bool(self._managers)

    def generate_batch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._session.note("generate_batch ran the plain way: continuous batching")
        with self._session.lock, self._session.configs.original_attention():
            return original(*args, **kwargs)

    def init_continuous_batching(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._session.note("init_continuous_batching: the model attends the plain way until its manager is stopped")
        with self._session.lock:
            self._session.configs.use_original()
            manager = original(*args, **kwargs)
            self.release(manager)
            self._managers.append(weakref.ref(manager))
        manager.stop = _Stop(self, manager)
        return manager

    def release(self, manager: Any) -> None:
        self._managers = [each for each in self._managers if each() is not manager]


class _Stop:
    """`manager.stop`, after which the model's attention is ours again at the next call of generate."""

    def __init__(self, batching: ContinuousBatching, manager: Any) -> None:
        self._batching = batching
        self._manager = weakref.ref(manager)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        manager: Any = self._manager()
        kind: Any = type(manager)
        try:
            return kind.stop(manager, *args, **kwargs)
        finally:
            self._batching.release(manager)

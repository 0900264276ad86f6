"""A config of its own for one model, so that its attention implementation can be switched alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from tpu_kernels.apply.journal import Journal
from tpu_kernels.runtime.attention import IMPLEMENTATION

_SWITCH = "_attn_implementation_internal"


class _Copy:
    """One copied config: the original, the copy, and what the copy held when it was made."""

    def __init__(self, original: PreTrainedConfig, own: PreTrainedConfig) -> None:
        self.original, self.own = original, own
        self.before: Any = getattr(own, _SWITCH, None)
        self.made_with = dict(vars(own))

    def carry_back(self) -> None:
        """Edits that were made to the copy meanwhile (a resized vocabulary, say) belong to the original."""
        now = vars(self.own)
        for name in self.made_with.keys() | now.keys():
            if name == _SWITCH or isinstance(now.get(name), PreTrainedConfig):
                continue
            if name not in now:
                vars(self.original).pop(name, None)
            elif name not in self.made_with or now[name] is not self.made_with[name]:
                vars(self.original)[name] = now[name]


class OwnConfigs:
    """The copies of a model's configs, each with the attention implementation that it had before."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []

    def install(self, model: PreTrainedModel, journal: Journal) -> None:
        """Give every submodule a copy of its config (shared where the original was shared) that names ours."""
        memo: dict[int, Any] = {}
        copies: dict[int, _Copy] = {}
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, PreTrainedConfig):
                    own = copy.deepcopy(value, memo)
                    for original, copied in _with_nested(value, own):
                        copies.setdefault(id(copied), _Copy(original, copied))
                    journal.set_attribute(module, name, own)
        self._copies = list(copies.values())
        self.use_ours()

    def use_ours(self) -> None:
        for each in self._copies:
            setattr(each.own, _SWITCH, IMPLEMENTATION)

    def use_original(self) -> None:
        for each in self._copies:
            setattr(each.own, _SWITCH, each.before)

    @contextmanager
    def original_attention(self) -> Iterator[None]:
        """Inside, the model attends the way it did before it was enabled; afterwards as it did outside."""
        outside = [getattr(each.own, _SWITCH, None) for each in self._copies]
        self.use_original()
        try:
            yield
        finally:
            for each, value in zip(self._copies, outside, strict=True):
                setattr(each.own, _SWITCH, value)

    def before(self, config: PreTrainedConfig) -> Any:
        """The implementation that `config` (one of the copies) named before."""
        return next((each.before for each in self._copies if each.own is config), None)

    def carry_back(self) -> None:
        """Give the originals what was edited on the copies; their attention implementation stays theirs."""
        for each in self._copies:
            each.carry_back()


def _with_nested(
    original: PreTrainedConfig, own: PreTrainedConfig
) -> Iterator[tuple[PreTrainedConfig, PreTrainedConfig]]:
    yield original, own
    for name, value in vars(original).items():
        if isinstance(value, PreTrainedConfig):
            yield from _with_nested(value, vars(own)[name])

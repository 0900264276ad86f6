"""A config of its own for one model, so that its attention implementation can be switched alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from tpu_kernels.apply.journal import Journal
from tpu_kernels.runtime.attention import IMPLEMENTATION


class OwnConfigs:
    """The copies of a model's configs, each with the attention implementation that it had before."""

    def __init__(self) -> None:
        self._before: list[tuple[PreTrainedConfig, Any]] = []

    def install(self, model: PreTrainedModel, journal: Journal) -> None:
        """Give every submodule a copy of its config (shared where the original was shared) that names ours."""
        memo: dict[int, Any] = {}
        copies: dict[int, PreTrainedConfig] = {}
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, PreTrainedConfig):
                    own = copy.deepcopy(value, memo)
                    copies[id(own)] = own
                    journal.set_attribute(module, name, own)
        for own in list(copies.values()):
            for nested in _nested_configs(own):
                copies[id(nested)] = nested
        self._before = [(own, own._attn_implementation_internal) for own in copies.values()]
        self.use_ours()

    def use_ours(self) -> None:
        for own, _ in self._before:
            own._attn_implementation_internal = IMPLEMENTATION

    @contextmanager
    def original_attention(self) -> Iterator[None]:
        """Inside, the model attends the way it did before it was enabled."""
        for own, before in self._before:
            own._attn_implementation_internal = before
        try:
            yield
        finally:
            self.use_ours()

    def before(self, config: PreTrainedConfig) -> Any:
        """The implementation that `config` (one of the copies) named before."""
        return next((before for own, before in self._before if own is config), None)


def _nested_configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    values: Mapping[str, Any] = vars(config)
    for value in values.values():
        if isinstance(value, PreTrainedConfig):
            yield value
            yield from _nested_configs(value)

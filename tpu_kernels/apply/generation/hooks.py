"""The methods of a transformers model that an enabled model answers itself while it generates.

`generate` decides the route. On the static route `_prepare_cache_for_generation` makes our cache, `_prefill` fills it
chunk by chunk, and `get_compiled_call` hands transformers' own decoding loop our compiled forwards. On the plain way
each of them is transformers' own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import CompileConfig, StaticCache
from transformers.utils import ModelOutput

from tpu_kernels.apply.generation.buckets import DEFAULT_CHUNK, cache_length
from tpu_kernels.apply.generation.compiled import CompiledForwards, tpu_compile_config
from tpu_kernels.apply.generation.continuous_batching import ContinuousBatching
from tpu_kernels.apply.generation.memory import check_cache_fits
from tpu_kernels.apply.generation.prefill import prefill
from tpu_kernels.apply.generation.routes import bound_arguments, plain_reason
from tpu_kernels.apply.generation.settlement import asked_for, compare_ranks
from tpu_kernels.apply.generation.shapes import CacheShapes, layers_in_use, probe_cache_shapes
from tpu_kernels.apply.session import Session
from tpu_kernels.chips import chip
from tpu_kernels.errors import CacheTooSmallError, explain
from tpu_kernels.runtime.kv_cache import KernelCache

_static_session: ContextVar[Session | None] = ContextVar("tpu_kernels_static_session", default=None)

HOOKED_METHODS = (
    "generate",
    "_prepare_cache_for_generation",
    "_prefill",
    "get_compiled_call",
    "generate_batch",
    "init_continuous_batching",
)


@dataclass(eq=False)
class GenerationHooks:
    """The hooks of one session. `original` holds the methods as they were found on the model."""

    session: Session
    original: dict[str, Callable[..., Any]] = field(default_factory=dict)
    compiled: CompiledForwards | None = None
    batching: ContinuousBatching = field(init=False)

    def __post_init__(self) -> None:
        self.batching = ContinuousBatching(self.session)

    def install(self) -> None:
        session = self.session
        self.compiled = CompiledForwards(session)
        for name in HOOKED_METHODS:
            if hasattr(session.model, name):
                self.original[name] = getattr(session.model, name)
                session.journal.set_attribute(session.model, name, Hook(self, name))

    def _is_static(self) -> bool:
        return _static_session.get() is self.session

    def _shapes(self) -> CacheShapes:
        """What the model caches; asked again when it was cast or moved, or runs with fewer layers for a time."""
        session = self.session
        made_for = (session.model.dtype, session.model.device, layers_in_use(session.model))
        if session.layer_shapes is None or session.layer_shapes[0] != made_for:
            with session.configs.original_attention(), session.log.paused():
                session.layer_shapes = made_for, probe_cache_shapes(session.model)
        shapes: CacheShapes = session.layer_shapes[1]
        return shapes

    @property
    def chunk(self) -> int:
        return self.session.settings.prefill_chunk or DEFAULT_CHUNK

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        with self.session.lock:
            arguments = bound_arguments(self.session.model, args, kwargs)
            reason = self._plain_reason(arguments)
            if not self.session.ranks.is_alone:
                compared = compare_ranks(self.session, reason, asked_for(arguments))
                reason = compared.plain
                if compared.retired and self.compiled is not None:
                    self.compiled.forget_all()
            if reason is None:
                return self._generate_static(arguments)
            self.session.note(f"generate ran the plain way: {reason}")
            with self.session.configs.original_attention():
                return self.original["generate"](*args, **kwargs)

    def _plain_reason(self, arguments: dict[str, Any]) -> str | None:
        if not any(layer.op == "attention" for layer in self.session.layers):
            return "no attention layer of it can be swapped"
        if self.batching.at_work:
            return "a manager of continuous batching is at work"
        reason = plain_reason(self.session.model, arguments) or self._shapes().obstacle
        if reason is None and _token_device(arguments).type != "cpu" and _has_own_processors(arguments):
            reason = "logits processors or stopping criteria of the caller's own, with inputs on the TPU"
        return reason

    def _generate_static(self, arguments: dict[str, Any]) -> Any:
        self.session.configs.use_ours()
        token = _static_session.set(self.session)
        try:
            moved = {name: _to_device(value, torch.device("cpu")) for name, value in arguments.items()}
            return _to_device(self.original["generate"](**moved), _token_device(arguments))
        finally:
            _static_session.reset(token)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        given = model_kwargs.get("past_key_values")
        if not self._is_static() or (given is not None and not isinstance(given, KernelCache)):
            _refuse_short_cache(given, max_cache_length)
            return self.original["_prepare_cache_for_generation"](
                generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
            )
        length = cache_length(
            max_cache_length,
            chunk=self.chunk,
            limit=self.session.settings.max_cache_len,
            floor=generation_config.max_cache_len,
        )
        if given is None:
            rows = batch_size * max(generation_config.num_beams, generation_config.num_return_sequences)
            model_kwargs["past_key_values"] = self._new_cache(rows, length)
        elif max_cache_length > given.get_max_length():
            if not given.hides_padding:
                _refuse_short_cache(given, max_cache_length)
            self._check_fits(given.batch_size, length)
            given.grow(length)
        return None

    def _check_fits(self, rows: int, length: int) -> None:
        shapes, generation = self._shapes(), self.session.generation
        check_cache_fits(
            self.session.model,
            shapes.ours,
            chip=chip(generation) if generation else None,
            batch_size=rows,
            max_cache_len=length,
            dtype=shapes.dtype,
        )

    def _new_cache(self, rows: int, length: int) -> KernelCache:
        self._check_fits(rows, length)
        model, shapes = self.session.model, self._shapes()
        return KernelCache(
            shapes.layers,
            batch_size=rows,
            max_cache_len=length,
            dtype=shapes.dtype,
            device=model.device,
            config=model.config.get_text_config(decoder=True),
        )

    def _prefill(
        self,
        input_ids: torch.Tensor,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        is_first_iteration: bool = True,
    ) -> Any:
        cache = model_kwargs.get("past_key_values")
        if not self._is_static() or not getattr(cache, "hides_padding", False):
            return self.original["_prefill"](
                input_ids, generation_config, model_kwargs, is_first_iteration=is_first_iteration
            )
        if generation_config.prefill_chunk_size not in (None, self.chunk):
            self.session.note(
                f"prefill_chunk_size={generation_config.prefill_chunk_size} was not used: the prefill runs in chunks"
                f" of {self.chunk} (prefill_chunk of enable_tpu_kernels)"
            )
        model = self.session.model
        mask = model_kwargs.get("attention_mask")
        dropped = getattr(generation_config, "_mask_length", input_ids.shape[1])
        total = int(mask.shape[1] if mask is not None else dropped)
        compiling = model._valid_auto_compile_criteria(model_kwargs, generation_config)
        forward = model.get_compiled_call(generation_config.compile_config) if compiling else model.__call__
        return prefill(model, forward, input_ids, model_kwargs, total=total, chunk=self.chunk)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        return self.batching.generate_batch(self.original["generate_batch"], *args, **kwargs)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        return self.batching.init_continuous_batching(self.original["init_continuous_batching"], *args, **kwargs)

    def get_compiled_call(self, compile_config: CompileConfig | None) -> Callable[..., Any]:
        if self._is_static() and self.compiled is not None:
            return functools.partial(self.compiled, compile_config)
        if compile_config is not None:
            compile_config = CompileConfig(mode="default", **tpu_compile_config(compile_config))
        forward: Callable[..., Any] = self.original["get_compiled_call"](compile_config)
        return forward


class Hook:
    """One hooked method as an attribute of the model; it shows the signature of the original."""

    def __init__(self, hooks: GenerationHooks, name: str) -> None:
        self._hooks, self._name = hooks, name
        self.__name__ = name
        self.__doc__ = hooks.original[name].__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._hooks.original[self._name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._hooks, self._name)(*args, **kwargs)


def _refuse_short_cache(given: Any, needed: int) -> None:
    """Raise CacheTooSmallError for a static cache of the caller's own that `needed` positions do not fit."""
    if isinstance(given, StaticCache) and needed > given.get_max_length() > 0:
        raise CacheTooSmallError(
            explain(
                "the cache passed to generate is too short.",
                needs=f"prompt and new tokens, less the last: {needed} positions",
                got=f"a {type(given).__name__} of {given.get_max_length()}",
                next_step="lower max_new_tokens, or start again without past_key_values.",
            )
        )


def _token_device(arguments: dict[str, Any]) -> torch.device:
    for name in ("inputs", "input_ids", "attention_mask"):
        if isinstance(arguments.get(name), torch.Tensor):
            device: torch.device = arguments[name].device
            return device
    return torch.device("cpu")


def _has_own_processors(arguments: dict[str, Any]) -> bool:
    names = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
    return any(arguments.get(name) for name in names)


def _to_device(value: Any, device: torch.device) -> Any:
    """Tensors of a call's arguments or outputs on `device`; caches stay where they are."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_to_device(item, device) for item in value)
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _to_device(item, device) for name, item in value.items()})
    return value

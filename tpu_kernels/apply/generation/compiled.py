"""The compiled forwards of an enabled model: one graph per phase, batch size and cache length.

Dynamo keys its caches by code object and gives up after a few entries; a code object of its own for each graph keeps
the guards of one short and makes every unforeseen retrace an error instead of a silent fall to eager.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from transformers import CompileConfig

from tpu_kernels.apply.generation.settlement import Settlement
from tpu_kernels.apply.generation.signs_of_life import signs_of_life
from tpu_kernels.apply.late_failure import (
    announce,
    not_finite,
    reinstate,
    silence,
    suspects,
    take_smaller_blocks,
    telling_line,
)
from tpu_kernels.apply.session import Session
from tpu_kernels.errors import CompileError, KernelFailedError, RanksDisagreeError
from tpu_kernels.runtime.bridge import compile_for_tpu, spmd_safe
from tpu_kernels.runtime.dispatch import Program, traced_into
from tpu_kernels.runtime.kv_cache import KernelCache


def _signature(inputs: Any) -> tuple[Any, ...]:
    """Names, dtypes and shapes of the tensors among the inputs: what a graph is made for, besides the cache."""
    found: list[Any] = []
    for name in sorted(inputs):
        value = inputs[name]
        if isinstance(value, torch.Tensor):
            found.append((name, value.dtype, tuple(value.shape)))
        elif isinstance(value, dict):
            found.append((name, *_signature(value)))
    return tuple(found)


def _mask_matrix(inputs: dict[str, Any]) -> bool:
    """Whether some attention mask is a matrix, not the bounds of intervals."""
    mask = inputs.get("attention_mask")
    masks = mask.values() if isinstance(mask, dict) else [mask]
    return any(isinstance(part, torch.Tensor) and part.dtype != torch.int32 for part in masks)


def tpu_compile_config(config: CompileConfig | None) -> dict[str, Any]:
    """Arguments of `torch.compile` that suit torch_tpu, keeping `fullgraph` of the user's own config."""
    return {
        "backend": "tpu",
        "dynamic": False,
        "fullgraph": bool(config.fullgraph) if config is not None else False,
    }


def _forward_with_own_code(model: Callable[..., Any], name: str) -> Callable[..., Any]:
    def forward(**inputs: Any) -> Any:
        return model(**inputs)

    code = forward.__code__.replace(co_name=name)
    return FunctionType(code, forward.__globals__, name, forward.__defaults__, forward.__closure__)


@dataclass
class _Compiled:
    """One compiled forward, and what is known of it."""

    program: Program
    settlement: Settlement
    call: Callable[..., Any]


class CompiledForwards:
    """Compiled calls of one enabled model, made as they are needed. A deep copy starts empty."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._compiled: dict[tuple[Any, ...], _Compiled] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledForwards:
        import copy

        return CompiledForwards(copy.deepcopy(self._session, memo))

    def __call__(self, config: CompileConfig | None, **inputs: Any) -> Any:
        """Run the forward for these inputs, compiled; `past_key_values` is a KernelCache.

        Where a graph fails in its first run and holds kernels, it is made once more without them.
        """
        cache = inputs.get("past_key_values")
        if not isinstance(cache, KernelCache):
            # A model may drop its cache for a step to compute it anew.
            return self._session.model(**inputs)
        length = cache.host_length()
        key, compiled = self._compiled_for(config, cache, inputs)
        program, settlement, ranks = compiled.program, compiled.settlement, self._session.ranks
        first, failures = program.runs == 0, self._session.failures
        line, failure = None, None
        try:
            outputs = self._run(compiled, inputs)
            if first and self._session.settings.check:
                line = ranks.first(ranks.agree(f"the output of {program.name}", not_finite(outputs)))
        except (KernelFailedError, RanksDisagreeError):
            raise
        except Exception as error:
            if first and not settlement.done:
                settlement.reach(error)
            if settlement.trouble is not None:
                raise settlement.trouble from None
            if settlement.differing:
                return self._anew(cache, length, config, inputs)
            failed = suspects(program) if ranks.is_alone else settlement.suspects
            if not first or not failed or (settlement.refused is None and not ranks.is_alone):
                raise
            line, failure = settlement.refused or telling_line(error), error
        if line is not None and (failed := suspects(program) if ranks.is_alone else settlement.suspects):
            self._forget(key, program)
            if cache.hides_padding:
                cache.set_length(length)
            if failure is not None and take_smaller_blocks(self._session, failed, line):
                return self(config, **inputs)
            silence(self._session, failed, line, failure)
            try:
                outputs = self(config, **inputs)
            except Exception:
                reinstate(self._session, failed)
                raise (failure or KernelFailedError(line)) from None
            announce(self._session, failed, line)
            return outputs
        if self._session.failures != failures:
            # Dynamo left the graph to Python, where the kernel failed and the fallback ran: trace it anew next time.
            self._forget(key, program)
        program.runs += 1
        cache.note_length(length + inputs["input_ids"].shape[1])
        return outputs

    def _anew(self, cache: KernelCache, length: int, config: CompileConfig | None, inputs: dict[str, Any]) -> Any:
        """The same call once more, after the ranks agreed to do without some kernels."""
        self.forget_all()
        if cache.hides_padding:
            cache.set_length(length)
        return self(config, **inputs)

    def _compiled_for(
        self, config: CompileConfig | None, cache: KernelCache, inputs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], _Compiled]:
        batch, tokens = inputs["input_ids"].shape
        options = tpu_compile_config(config)
        if not self._session.ranks.is_alone:
            # What Dynamo would leave to Python on one rank alone is a failure, which the others hear of.
            options["fullgraph"] = True
        key = (cache.get_max_length(), options["fullgraph"], len(cache.layers), _signature(inputs))
        if key not in self._compiled:
            name = f"{'decode' if tokens == 1 else 'prefill'} batch {batch} tokens {tokens} cache {key[0]}"
            name += " fullgraph" * tpu_compile_config(config)["fullgraph"] + " mask matrix" * _mask_matrix(inputs)
            program = Program(name, batch, tokens, key[0])
            model: Any = self._session.model
            forward = _forward_with_own_code(
                spmd_safe(model) if self._session.same_graph and not self._session.ranks.is_alone else model,
                name.replace(" ", "_"),
            )
            settlement = Settlement(self._session, program)
            call = torch.compile(forward, **{**options, "backend": functools.partial(_compile, settlement)})
            self._compiled[key] = _Compiled(program, settlement, call)
            self._session.log.programs.append(program)
        return key, self._compiled[key]

    def _run(self, compiled: _Compiled, inputs: dict[str, Any]) -> Any:
        program, compiled.settlement.done = compiled.program, False
        with traced_into(program), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            if program.runs:
                return compiled.call(**inputs)
            started = time.monotonic()
            with signs_of_life(f"compiling {program.name}"):
                outputs = compiled.call(**inputs)
            program.compile_seconds = time.monotonic() - started
            return outputs

    def _forget(self, key: tuple[Any, ...], program: Program) -> None:
        del self._compiled[key]
        self._session.log.programs.remove(program)

    def forget_all(self) -> None:
        for key, compiled in list(self._compiled.items()):
            self._forget(key, compiled.program)


def _compile(settlement: Settlement, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """The backend of our graphs. Where ranks share the model, none goes on before all have compiled the same."""
    try:
        compiled = compile_for_tpu(module, inputs)
    except Exception as error:
        settlement.reach(error)
        raise
    settlement.reach(None)
    if settlement.refused is not None or settlement.differing:
        raise CompileError(settlement.refused or "the ranks decided differently")
    return compiled

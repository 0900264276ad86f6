"""The programs of a model's generation, of its config alone. For a process in which the emulator runs.

The model is built on `meta` and moved to the device without contents; nothing runs, so its size does not matter.
What is captured is what `generate` compiles: the first compiled forward of each step is let through and kept, and
generation ends there, because a program that does not run gives no tokens.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from tpu_kernels import emulator
from tpu_kernels.apply import enable_tpu_kernels
from tpu_kernels.apply.generation.buckets import DEFAULT_CHUNK
from tpu_kernels.apply.session import session_of
from tpu_kernels.emulator import CapturedPrograms
from tpu_kernels.errors import CompileError, explain
from tpu_kernels.lab.programs.function import CapturedStep, programs_of
from tpu_kernels.lab.programs.program import Program
from tpu_kernels.lab.programs.requests import ModelCase, Step
from tpu_kernels.lab.programs.sharding import divide, to_empty
from tpu_kernels.plan.model_view import model_from_config, resolve_model
from tpu_kernels.runtime.bridge import spmd_safe
from tpu_kernels.runtime.dispatch import Decision

Steps = dict[Step, CapturedStep]


_TOKENS = 2
"""Tokens to generate: the second one is a decode step in every flow."""


class _EnoughCaptured(BaseException):
    """Ends a generation whose wanted steps are captured; no handler of transformers' stops it."""


class _EndOfTokens:
    """A logits processor that ends a generation which compiles nothing: zeros satisfy no stopping rule."""

    def __init__(self) -> None:
        self._left = _TOKENS + 1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._left -= 1
        if not self._left:
            raise _EnoughCaptured
        return scores


def capture_steps(case: ModelCase) -> list[Program]:
    """The programs of the case's steps, each named after its step.

    Raises ModelStructureError where there is no such config, whatever the model raises, and CompileError where
    generation did not compile a step.
    """
    with emulator.capture() as programs, torch.no_grad(), _spmd_safe_or_not(case):
        model = empty_model(case)
        if case.tp_size > 1 and case.flow == "plain":
            _trace_spmd_safe(model)
        if case.flow == "tpu-kernels":
            enable_tpu_kernels(model, prefill_chunk=case.prefill_chunk, max_cache_len=case.max_len)
            steps = _generated(model, case, programs, prompt=1 + _chunk(case) * ("prefill" in case.steps))
        else:
            steps = {}
            if "prefill" in case.steps:
                steps["prefill"] = _plain_prefill(model, case, programs)
            if "decode" in case.steps:
                steps["decode"] = _generated(model, replace(case, steps=("decode",)), programs, prompt=1)["decode"]
    return [program for step in case.steps for program in _named(step, steps[step], model)]


@contextmanager
def _spmd_safe_or_not(case: ModelCase) -> Iterator[None]:
    """Inside, `torch.tpu.distributed.spmd_safe` changes nothing where the case is to be cut at its collectives."""
    distributed: Any = torch.tpu.distributed  # type: ignore[attr-defined]
    own = distributed.spmd_safe
    if not case.spmd_safe:
        distributed.spmd_safe = lambda function: function
    try:
        yield
    finally:
        distributed.spmd_safe = own


def _trace_spmd_safe(model: PreTrainedModel) -> None:
    """Mark what is traced of the forward as the same on all ranks; transformers itself does not."""
    original: Any = model.forward
    marked = spmd_safe(original)

    @functools.wraps(original)
    def forward(*arguments: Any, **keywords: Any) -> Any:
        return (marked if torch.compiler.is_compiling() else original)(*arguments, **keywords)

    model.__dict__["forward"] = forward


def empty_model(case: ModelCase) -> PreTrainedModel:
    """The model on the device, its weights and buffers without contents; tied weights stay tied."""
    config = resolve_model(case.model).config
    model = model_from_config(config, getattr(torch, case.dtype))
    if case.tp_size > 1:
        divide(model, case.tp_size)
    to_empty(model, "tpu")
    return model


def _generated(model: PreTrainedModel, case: ModelCase, programs: CapturedPrograms, *, prompt: int) -> Steps:
    """The case's steps out of a generation from `prompt` tokens. A step that it did not compile is empty."""
    steps: Steps = {}
    device = torch.device("cpu" if case.flow == "tpu-kernels" else "tpu")
    ids = torch.zeros((case.batch, prompt), dtype=torch.int64).to(device)
    mask = torch.ones((case.batch, prompt), dtype=torch.int64).to(device)
    generate: Callable[..., Any] = model.generate
    with _compiled_forwards_kept(model, case, programs, steps), suppress(_EnoughCaptured):
        generate(
            ids,
            attention_mask=mask,
            max_new_tokens=_TOKENS,
            min_new_tokens=_TOKENS,
            logits_processor=LogitsProcessorList([_EndOfTokens()]),
            do_sample=False,
            num_beams=1,
            cache_implementation="static",
            max_cache_len=case.max_len - 1 if case.flow == "tpu-kernels" else case.max_len,
        )
    return {step: steps.get(step, CapturedStep([], [])) for step in case.steps}


@contextmanager
def _compiled_forwards_kept(
    model: PreTrainedModel, case: ModelCase, programs: CapturedPrograms, steps: Steps
) -> Iterator[None]:
    """Inside, the programs of each first compiled forward of the model are put into `steps`."""
    original = model.get_compiled_call

    def get_compiled_call(compile_config: Any) -> Callable[..., Any]:
        forward = original(compile_config)

        def call(**inputs: Any) -> Any:
            step: Step = "decode" if inputs["input_ids"].shape[1] == 1 else "prefill"
            outputs: list[Any] = []
            captured = programs_of(programs, lambda: outputs.append(forward(**inputs)))
            steps.setdefault(step, captured)
            if set(case.steps) <= set(steps):
                raise _EnoughCaptured
            return outputs[0]

        return call

    model.__dict__["get_compiled_call"] = get_compiled_call
    try:
        yield
    finally:
        model.__dict__["get_compiled_call"] = original


def _plain_prefill(model: PreTrainedModel, case: ModelCase, programs: CapturedPrograms) -> CapturedStep:
    """The first chunk of transformers' chunked prefill, the only prefill that it compiles.

    Not through `generate`, which asks the device for the cache's length to cut the chunks: here that is no answer.
    """
    chunk = _chunk(case)
    inputs = model.prepare_inputs_for_generation(
        torch.zeros((case.batch, chunk), dtype=torch.int64).to("tpu"),
        past_key_values=model._prepare_static_cache("static", case.batch, case.max_len, chunk, {}),
        attention_mask=torch.ones((case.batch, chunk), dtype=torch.int64).to("tpu"),
        position_ids=torch.arange(chunk).expand(case.batch, chunk).contiguous().to("tpu"),
        use_cache=True,
    )
    forward = model.get_compiled_call(None)
    return programs_of(programs, lambda: forward(**inputs, return_dict=True))


def _chunk(case: ModelCase) -> int:
    return case.prefill_chunk or DEFAULT_CHUNK


def _named(step: Step, captured: CapturedStep, model: PreTrainedModel) -> list[Program]:
    """The largest of a step's programs under the step's name, the others numbered."""
    if not captured.programs:
        raise CompileError(
            explain(
                f"generate compiled no {step} step of {type(model).__name__}.",
                needs="a model that transformers generates from with a compiled static cache",
                got=_notes(model) or "it ran eagerly",
            )
        )
    with_runs = zip(captured.programs, captured.runs, strict=True)
    ordered = sorted(with_runs, key=lambda pair: len(pair[0].stablehlo), reverse=True)
    return [
        Program(
            step if number == 1 else f"{step} {number}",
            one.stablehlo,
            one.compile_options,
            one.name,
            _decisions(model, step) if number == 1 else "",
            runs,
        )
        for number, (one, runs) in enumerate(ordered, 1)
    ]


def _notes(model: PreTrainedModel) -> str:
    session = session_of(model)
    return "; ".join(session.notes) if session is not None else ""


def _decisions(model: PreTrainedModel, step: Step) -> str:
    """What the layers of an enabled model chose for a step, kernels first: "28 x attention/static-attention"."""
    session = session_of(model)
    if session is None:
        return ""
    decisions = [
        decision
        for program in session.log.programs
        for decision in program.decisions.values()
        if decision.phase == step
    ]
    chosen = Counter(map(_choice, sorted(decisions, key=lambda decision: not decision.is_kernel)))
    return "; ".join([f"{count} x {name}" for name, count in chosen.items()]) or _notes(model)


def _choice(decision: Decision) -> str:
    if decision.is_kernel:
        return decision.chosen
    if decision.left_to_xla:
        return "left to XLA"
    return f"{decision.chosen} ({decision.reason})"

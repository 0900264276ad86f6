"""One architecture on the emulated TPU against plain transformers on the CPU. Needs a running emulator."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tpu_kernels.apply import enable_tpu_kernels
from tpu_kernels.apply.report import EnableReport
from tpu_kernels.errors import NoMatchError
from tpu_kernels.harness.coverage.architectures import Architecture
from tpu_kernels.harness.coverage.row import TOLERANCE, Outcome, Row
from tpu_kernels.harness.weights import biting_weights_
from tpu_kernels.lab.programs.requests import Flow
from tpu_kernels.specs import KernelSpec
from tpu_kernels.specs.vocabulary import POLICIES, Policy

LENGTHS = (11, 11, 5)
"""Tokens of the prompts: two that make a batch as they are, and one that needs padding beside the first. With the new
tokens they go past the windows (8) of the tiny configurations."""
NEW_TOKENS = 14
CHUNK = 8
"""Of the prefill: the longer prompt takes a whole chunk and a padded one."""


def check(
    name: str,
    architecture: Architecture,
    flow: Flow = "tpu-kernels",
    specs: Sequence[str | Path | KernelSpec] = (),
    policies: Sequence[Policy] = POLICIES,
) -> Row:
    """Generate greedily with the architecture and compare tokens and logits with the reference.

    The reference is plain transformers on the CPU: float32, eager attention, no static cache, no compilation, each
    prompt alone. `flow` is an enabled model, under each of `policies` in turn, or "plain": transformers' own
    static-cache generation on the TPU, for one prompt. `specs` are kernel specs to prefer to the bundled ones.
    """
    started = time.monotonic()
    torch.manual_seed(0)
    reference = biting_weights_(architecture.build("eager"))
    model = architecture.build()
    model.load_state_dict(reference.state_dict())
    model = model.to("tpu")
    vocabulary = reference.config.get_text_config().vocab_size
    prompts = [torch.randint(3, vocabulary, (length,)) for length in LENGTHS]
    expected = [_generate(reference, [prompt], disable_compile=True) for prompt in prompts]
    # transformers compiles one function for all models; after eight of them it would run eagerly.
    torch.compiler.reset()
    if flow == "plain":
        got = _generate(model, prompts[:1], cache_implementation="static", device=model.device)
        difference = _difference(got, expected[:1])
        outcome = Outcome(equal=difference < TOLERANCE, logits=difference)
        return Row(name=name, outcomes={"plain": outcome}, seconds=_since(started))
    outcomes: dict[str, Outcome] = {}
    counts: dict[str, Any] = {}
    for policy in policies:
        torch.compiler.reset()
        try:
            report = enable_tpu_kernels(model, specs, prefill_chunk=CHUNK, policy=policy)
        except NoMatchError:
            report = EnableReport(None, (), "it has no layer that a kernel could replace: the model is as it was")
        with report:
            outcomes[policy] = _outcome(report, model, prompts, expected, architecture.static_cache_left_padded)
        if policy == "always" or not counts:
            counts = _counts(report)
    return Row(name=name, outcomes=outcomes, seconds=_since(started), **counts)


def _outcome(report: EnableReport, model: Any, prompts: Any, expected: Any, with_padding: bool) -> Outcome:
    difference = _difference(_generate(model, prompts[:2]), expected[:2])
    padded = None
    if with_padding:  # the same graphs run again
        padded = _difference(_generate(model, prompts[::2]), expected[::2])
    return Outcome(
        equal=difference < TOLERANCE,
        padded=None if padded is None else padded < TOLERANCE,
        logits=max(difference, padded or 0.0),
        ran=_what_ran(report),
        notes=report.notes,
    )


def _counts(report: EnableReport) -> dict[str, Any]:
    kept: dict[str, Counter[str]] = {}
    for entry in report.kept:
        kept.setdefault(entry.op, Counter())[entry.reason] += 1
    return {
        "layers": dict(Counter(entry.op for entry in report.entries)),
        "swapped": dict(Counter(entry.op for entry in report.swapped)),
        "kernels": dict(Counter(str(entry.kernel) for entry in report.swapped)),
        "kept": {op: dict(reasons) for op, reasons in kept.items()},
    }


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


def _what_ran(report: EnableReport) -> tuple[str, ...]:
    ran = {f"{call.op}, {call.phase}: {call.chosen}" + f" ({call.reason})" * bool(call.reason) for call in report.calls}
    return tuple(sorted(ran))


def _difference(got: tuple[torch.Tensor, torch.Tensor], expected: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Largest difference of the logits; infinite if a token differs or a logit is not a number."""
    tokens = torch.cat([each[0] for each in expected])
    if not torch.equal(got[0], tokens):
        return float("inf")
    difference = float((got[1] - torch.cat([each[1] for each in expected])).abs().max())
    return difference if difference == difference else float("inf")


def _generate(
    model: Any, prompts: list[torch.Tensor], device: torch.device | str = "cpu", **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """New tokens `[rows, new]` and raw logits `[rows, new, vocabulary]`; shorter prompts are padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.stack([F.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([F.pad(torch.ones_like(prompt), (longest - len(prompt), 0)) for prompt in prompts])
    output = model.generate(
        tokens.to(device),
        attention_mask=mask.to(device),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return output.sequences[:, longest:].cpu(), torch.stack([step.cpu() for step in output.logits], dim=1)

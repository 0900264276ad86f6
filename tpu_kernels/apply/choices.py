"""Which kernel each layer gets: what the plan says, as far as it could be loaded, and on every rank the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tpu_kernels._logging import logger
from tpu_kernels.apply.session import Settings
from tpu_kernels.errors import KernelLoadError, RanksDisagreeError, explain
from tpu_kernels.plan import Layer, PlanEntry, SwapPlan
from tpu_kernels.runtime.hub import LoadedKernel, load_kernel
from tpu_kernels.runtime.ranks import Ranks

OnReject = Literal["fallback", "error"]
DISABLE_VARIABLE = "TPU_KERNELS_DISABLE"


def _load_kernels(plan: SwapPlan, on_reject: OnReject) -> tuple[dict[str, LoadedKernel], dict[str, str]]:
    """Each kernel of the plan once, by spec name; and why those that did not load did not."""
    loaded: dict[str, LoadedKernel] = {}
    failed: dict[str, str] = {}
    for spec in {entry.kernel.name: entry.kernel for entry in plan.entries if entry.kernel}.values():
        try:
            loaded[spec.name] = load_kernel(spec)
        except KernelLoadError as error:
            if on_reject == "error":
                raise
            logger.warning("%s", error)
            failed[spec.name] = str(error).replace("\n", " ")
    return loaded, failed


@dataclass(frozen=True)
class Choice:
    """What one layer gets, on every rank: its kernel, or why it has none."""

    layer: Layer
    entry: PlanEntry
    kernel: LoadedKernel | None
    reason: str


def choices_of(plan: SwapPlan, layers: Sequence[Layer], on_reject: OnReject) -> list[Choice]:
    """Each layer of the plan with the kernel that this process loaded for it."""
    loaded, failed = _load_kernels(plan, on_reject)
    choices = []
    for layer, entry in zip(layers, plan.entries, strict=True):
        kernel = loaded.get(entry.kernel.name) if entry.kernel else None
        reason = failed.get(entry.kernel.name, entry.reason) if entry.kernel else entry.reason
        choices.append(Choice(layer, entry, kernel, reason))
    return choices


def agreed(ranks: Ranks, prepare: Callable[[], tuple[SwapPlan, list[Choice]]]) -> tuple[SwapPlan, list[Choice]]:
    """What every rank can do: a kernel that one of them lacks is left out on all, an error of one is one on all."""
    if ranks.is_alone:
        return prepare()
    failure: Exception | None = None
    plan: SwapPlan | None = None
    choices: list[Choice] = []
    try:
        plan, choices = prepare()
    except Exception as error:
        failure = error
    generation = plan.generation if plan is not None else None
    own = [[choice.layer.path, _build(choice, generation), choice.reason] for choice in choices]
    answers = ranks.agree(
        "enable_tpu_kernels", [None if failure is None else f"{type(failure).__name__}: {failure}", own]
    )
    failed = ranks.first([each for each, _ in answers])
    if failure is not None:
        raise failure
    if failed is not None or plan is None:
        raise RanksDisagreeError(
            explain(
                "enable_tpu_kernels failed on another rank, so it was done on none.",
                got=failed,
                next_step="mend it there; this model was left as it was.",
            )
        )
    theirs = [each for _, each in answers]
    if any([path for path, *_ in each] != [path for path, *_ in own] for each in theirs):
        raise RanksDisagreeError(
            explain(
                "The ranks found different layers in their models, so nothing was enabled.",
                needs="the same model, specs and arguments on every rank",
                got=", ".join(
                    f"{len(each)} layers on rank {rank}" for rank, each in zip(ranks.members, theirs, strict=True)
                ),
                next_step="load and enable the same on every rank.",
            )
        )
    return plan, [_common(ranks, choice, [each[index] for each in theirs]) for index, choice in enumerate(choices)]


def _build(choice: Choice, generation: str | None) -> str | None:
    """Which kernel a layer gets, to the byte: spec, digest and block sizes."""
    kernel = choice.kernel
    return None if kernel is None else f"{kernel.spec.name} {kernel.digest} {kernel.spec.tuning(generation)}"


def _common(ranks: Ranks, choice: Choice, said: list[Any]) -> Choice:
    kernels, reasons = {kernel for _, kernel, _ in said}, {reason for *_, reason in said}
    if len(kernels) == 1 and (len(reasons) == 1 or choice.kernel is not None):
        return choice
    without = ranks.first([reason or "no kernel" if kernel is None else "" for _, kernel, reason in said])
    return replace(choice, kernel=None, reason=without or "the ranks loaded different builds of its kernel")


def is_disabled(ranks: Ranks, settings: Settings, include: Sequence[str] | None, exclude: Sequence[str] | None) -> bool:
    """Whether the environment says so, on any rank. Raises RanksDisagreeError where the arguments differ."""
    disabled = os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")
    asked = f"{settings}, include={list(include or ())}, exclude={list(exclude or ())}"
    answers = ranks.agree("the arguments of enable_tpu_kernels", [disabled, asked])
    if len({each for _, each in answers}) > 1:
        got = "\n".join(f"rank {rank}: {each}" for rank, (_, each) in zip(ranks.members, answers, strict=True))
        raise RanksDisagreeError(
            explain(
                "enable_tpu_kernels got different arguments on different ranks; nothing was enabled.",
                got=got,
                next_step="pass the same on every rank.",
            )
        )
    return any(each for each, _ in answers)

"""`enable_tpu_kernels` and `disable_tpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any

from transformers import PreTrainedModel

from tpu_kernels._logging import logger
from tpu_kernels.apply.choices import DISABLE_VARIABLE, Choice, OnReject, agreed, choices_of, is_disabled
from tpu_kernels.apply.generation.buckets import check_chunk
from tpu_kernels.apply.generation.hooks import GenerationHooks
from tpu_kernels.apply.late_failure import EagerFailure
from tpu_kernels.apply.report import EnableReport, ReportEntry
from tpu_kernels.apply.session import SESSION_ATTRIBUTE, Session, Settings, session_of
from tpu_kernels.errors import (
    KernelRejectedError,
    ModelNotOnTpuError,
    ModelStructureError,
    NoMatchError,
    explain,
)
from tpu_kernels.plan import (
    Layer,
    PlanEntry,
    SwapPlan,
    plan_model,
    rejection_message,
    unwrap,
)
from tpu_kernels.plan.sharded import depends_on_rank
from tpu_kernels.runtime.attention import register_interfaces
from tpu_kernels.runtime.bridge import announce_backend, current_chip
from tpu_kernels.runtime.dispatch import LAYER_ATTRIBUTE, LayerDispatch
from tpu_kernels.runtime.hub import LoadedKernel
from tpu_kernels.runtime.modules import OWN_CODE, module_forward
from tpu_kernels.runtime.ranks import ranks_of
from tpu_kernels.runtime.rotary import RotaryForward
from tpu_kernels.runtime.stack import check_stack
from tpu_kernels.runtime.vocabulary import attributes_of, is_divided_vocabulary, vocabulary_forward
from tpu_kernels.specs import KernelSpec
from tpu_kernels.specs.vocabulary import POLICIES, Policy


def _check_on_tpu(model: PreTrainedModel) -> None:
    devices = sorted({parameter.device.type for parameter in model.parameters()})
    if devices == ["tpu"]:
        return
    where = ", ".join(devices) or "no device"
    hint = '\n(device_map="auto" puts a model on the CPU without a word: it does not know TPUs)'
    raise ModelNotOnTpuError(
        explain(
            f"{type(model).__name__} is not on a TPU, so no TPU kernel can run in it.",
            needs="every parameter on device tpu",
            got=f"parameters on {where}" + (hint if "cpu" in devices else ""),
            next_step='load it with from_pretrained(..., device_map="tpu"); without a TPU, run the script by'
            " `tpu-kernels emulate SCRIPT`.",
        )
    )


def _check_not_enabled_in_part(model: PreTrainedModel) -> None:
    part = next((path for path, module in model.named_modules() if vars(module).get(LAYER_ATTRIBUTE)), None)
    if part is not None:
        raise ModelStructureError(
            explain(
                f"Layers of {type(model).__name__} are enabled already, through another model that shares them.",
                got=f"`{part}` has a kernel",
                next_step="undo that first (report.undo()), and enable the outermost model alone.",
            )
        )


def _refuse_rejected(plan: SwapPlan, policy: Policy) -> None:
    for entry in plan.kept:
        if entry.obstacle is not None and (entry.op == "attention" or policy == "always"):
            raise KernelRejectedError(
                explain(
                    f"No kernel can replace `{entry.path}` ({entry.facts.class_name}).",
                    got=entry.obstacle,
                    next_step='keep it with on_reject="fallback".',
                )
            )
        if entry.rejected:
            raise KernelRejectedError(
                rejection_message(entry.path, entry.facts.class_name, entry.rejected, plan.generation)
            )


def _attention_fallback(session: Session, module: Any, kernel: LoadedKernel | None) -> str:
    """What runs where the kernel does not: the spec's wish, else what the model ran before."""
    before = session.configs.before(module.config) or "eager"
    wish = kernel.spec.fallback if kernel is not None else "auto"
    return str(before) if wish == "auto" else wish


def _swap(session: Session, choices: Sequence[Choice]) -> tuple[ReportEntry, ...]:
    """Give the layers their dispatch. Only here, and in the hooks, is the model changed.

    An attention layer without a kernel gets one too, since its fallback expands our masks; any other is left alone.
    """
    if any(choice.layer.op == "attention" and choice.layer.obstacle is None for choice in choices):
        session.configs.install(session.model, session.journal)
    for choice in choices:
        layer, kernel = choice.layer, choice.kernel
        attention = layer.op == "attention"
        if layer.obstacle is not None or (kernel is None and not attention):
            continue
        dispatch = LayerDispatch(
            layer.path,
            layer.op,
            kernel,
            choice.reason,
            fallback=_attention_fallback(session, layer.module, kernel) if attention else OWN_CODE,
            generation=session.generation,
            log=session.log,
            only_where_preferred=session.settings.policy == "auto",
            facts=layer.facts,
            binding=layer.binding,
            ranks=session.ranks,
        )
        dispatch.on_failure, dispatch.owner = EagerFailure(session), session.model
        session.layers.append(dispatch)
        if layer.rotary is not None:
            forward = RotaryForward(layer.module, layer.rotary, dispatch)
            session.journal.set_attribute(layer.module, "forward", forward)
            continue
        session.journal.set_attribute(layer.module, LAYER_ATTRIBUTE, dispatch)
        if not attention:
            session.journal.set_attribute(layer.module, "forward", MethodType(module_forward, layer.module))
    if not session.ranks.is_alone:
        _make_alike(session)
    return tuple(_report_entry(choice.entry, choice.kernel, choice.reason) for choice in choices)


def _make_alike(session: Session) -> None:
    """Let every rank trace the same graph, which `spmd_safe` asks for; where that cannot be, say so and do without."""
    reasons = []
    for path, module in session.model.named_modules():
        if is_divided_vocabulary(module):
            for name, value in attributes_of(module).items():
                session.journal.set_attribute(module, name, value)
            session.journal.set_attribute(module, "forward", MethodType(vocabulary_forward, module))
        elif style := depends_on_rank(module):
            reasons.append(f"{path} ({style})")
    session.same_graph = not reasons
    if reasons:
        session.note(
            f"on a TPU its graphs are cut at every collective, as they differ between ranks: {reasons[0]}"
            + f" and {len(reasons) - 1} more" * (len(reasons) > 1)
        )


def _report_entry(entry: PlanEntry, kernel: LoadedKernel | None, reason: str) -> ReportEntry:
    if kernel is None:
        return ReportEntry(entry.path, entry.op, None, reason)
    return ReportEntry(entry.path, entry.op, kernel.spec.name, reason, kernel.repo, kernel.revision, kernel.digest)


def enable_tpu_kernels(
    model: Any,
    specs: Sequence[str | Path | KernelSpec] | None = None,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    policy: Policy = "auto",
    on_reject: OnReject = "fallback",
    max_cache_len: int | None = None,
    prefill_chunk: int | None = None,
    check: bool = False,
) -> EnableReport:
    """Swap the layers of a transformers model on a TPU for kernels, in place, and let `generate` use them.

    model          a transformers model on device `tpu`, or a wrapper (PEFT, …) that holds one
    specs          kernel specs to add to the bundled ones: files, folders or `KernelSpec`s
    include        glob patterns over module paths: only these layers (`model.layers.0.*`)
    exclude        glob patterns: not these layers
    policy         "auto" takes a kernel where it is right and not known to lose, "always" wherever it is right
    on_reject      "fallback" keeps a layer that no kernel fits, or whose kernel fails later; "error" raises and leaves
                   the model as it was
    max_cache_len  longest key/value cache in tokens; by default each call gets the next bucket (256, 512, …)
    prefill_chunk  tokens per prefill step, a power of two from 8 to 1024 (default 256)
    check          look at the output of each graph's first run (it costs a wait): one that is not finite counts as a
                   failed kernel

    Returns a report: what was swapped and kept, with reasons; `report.undo()` puts the model back. Enabling twice
    returns the first report. With the environment variable TPU_KERNELS_DISABLE=1 nothing is done.

    Raises ModelNotOnTpuError, ModelStructureError, NoMatchError, StackError, SpecError; with on_reject="error" also
    KernelRejectedError and KernelLoadError, and the model's later calls KernelFailedError.
    """
    if on_reject not in ("fallback", "error"):
        raise ValueError(f'on_reject must be "fallback" or "error", got {on_reject!r}')
    if max_cache_len is not None and max_cache_len < 1:
        raise ValueError(f"max_cache_len must be at least 1, got {max_cache_len}")
    if prefill_chunk is not None:
        check_chunk(prefill_chunk)
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    inner = unwrap(model)
    settings = Settings(max_cache_len, prefill_chunk, on_reject, check, policy)
    session = session_of(inner)
    if session is not None and session.report is not None:
        if session.settings != settings or specs or include is not None or exclude is not None:
            logger.warning("%s is enabled already; these arguments change nothing: undo first", type(inner).__name__)
        return session.report
    ranks = ranks_of(inner)
    if is_disabled(ranks, settings, include, exclude):
        note = f"{DISABLE_VARIABLE} is set: nothing was enabled"
        logger.warning(note)
        return EnableReport(None, (), note)

    def prepare() -> tuple[SwapPlan, list[Choice]]:
        plan, layers = _planned(inner, specs, include, exclude, policy)
        if on_reject == "error":
            _refuse_rejected(plan, policy)
        return plan, choices_of(plan, layers, on_reject)

    plan, choices = agreed(ranks, prepare)
    register_interfaces()
    session = Session(inner, settings, plan.generation, ranks=ranks)
    try:
        session.entries = _swap(session, choices)
        GenerationHooks(session).install()
        session.journal.set_attribute(inner, SESSION_ATTRIBUTE, session)
    except BaseException:
        session.journal.undo()
        raise
    session.enabled = True
    session.report = EnableReport(session, session.entries)
    logger.info("%s", session.report)
    return session.report


def _planned(
    model: PreTrainedModel,
    specs: Sequence[str | Path | KernelSpec] | None,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    policy: Policy,
) -> tuple[SwapPlan, Sequence[Layer]]:
    """The plan for a model on the chip of this process. Raises what `enable_tpu_kernels` says."""
    _check_on_tpu(model)
    _check_not_enabled_in_part(model)
    check_stack()
    announce_backend()
    chip = current_chip()
    generation = chip.name if chip else None
    if generation is None:
        logger.warning("the generation of this TPU is not known: kernels take their default block sizes")
    plan, layers = plan_model(model, specs, include=include, exclude=exclude, policy=policy, generation=generation)
    if not plan.entries:
        raise NoMatchError(
            explain(
                f"no layer of {type(model).__name__} matches any kernel spec.",
                needs="a model with attention, norm, MLP or experts layers",
                next_step="see `tpu-kernels specs` for what the registry holds.",
            )
        )
    return plan, layers


def disable_tpu_kernels(model: Any) -> bool:
    """Put an enabled model back exactly as it was. Returns whether it was enabled."""
    session = session_of(unwrap(model))
    if session is None:
        return False
    session.undo()
    return True

"""What one decoded token costs a model on a TPU: HBM bytes and estimated time, by what they are for.

The decode step is captured with tpu-kernels and plain, compiled by libtpu with its schedules, and each instruction's
cost is put to a group. What runs between the programs of two tokens is not in it.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from tpu_kernels.chips import ChipInfo
from tpu_kernels.errors import CacheTooLargeError, KernelLoadError
from tpu_kernels.lab.cost.collectives import Collective
from tpu_kernels.lab.cost.compiling import schedule_jobs
from tpu_kernels.lab.cost.dumps import read_dumps
from tpu_kernels.lab.cost.hlo import HloInstruction, parse_hlo
from tpu_kernels.lab.cost.model_groups import GROUPS, Group, StepGroups
from tpu_kernels.lab.cost.subject import attention_subject, kernel_source
from tpu_kernels.lab.cost.xla_time import Arguments, ProgramCost, program_cost
from tpu_kernels.lab.memory import Memory
from tpu_kernels.lab.programs import FLOWS, CompiledProgram, ModelCase, Program, capture_model, compile_programs
from tpu_kernels.lab.programs.requests import Flow
from tpu_kernels.lab.targets import Target, target_of
from tpu_kernels.ops.attention.cases import AttentionCase
from tpu_kernels.ops.attention.contract import AttentionShape

DEFAULT_MAX_LEN: Final = 4096


@dataclass(frozen=True)
class GroupCost:
    """Seconds, and bytes read from and written to HBM."""

    seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def hbm_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class CollectiveCost:
    """The collectives of a step that are alike."""

    collective: Collective
    count: int
    seconds: float
    """Of one."""
    source_seconds: float
    """Of the operation whose result one takes: a product that is reduced."""

    def hideable(self, chip: ChipInfo) -> float:
        """Seconds of one that run beside its own product if both are cut into pieces. Hops are waited for whatever the
        size, so each further piece only adds to them."""
        return min(self.collective.wire(chip), self.source_seconds)


@dataclass(frozen=True)
class ModelCost:
    """One decode step of a model on one TPU; sizes in bytes."""

    case: ModelCase
    target: Target
    length: int
    """Positions of the cache in use."""
    error: str | None = None
    """Why there is no program, in one line."""
    seconds: float = 0.0
    """At least what all bytes take. The groups may sum to less: what is prefetched costs bytes and no wait."""
    groups: Mapping[Group, GroupCost] = field(default_factory=dict)
    memory: Memory | None = None
    cache_bytes: int = 0
    programs: int = 0
    """Programs that run for the step."""
    seconds_apart: float = 0.0
    """The step if collectives took no time: no overlap of theirs can gain more."""
    collectives: tuple[CollectiveCost, ...] = ()
    note: str = ""

    @property
    def hbm_bytes(self) -> int:
        return sum(group.hbm_bytes for group in self.groups.values())

    def as_dict(self) -> dict[str, Any]:
        memory = None if self.memory is None else asdict(self.memory)
        return {
            "model": self.case.model,
            "flow": self.case.flow,
            "topology": self.target.topology,
            "chip": self.target.chip.name,
            "tp_size": self.case.tp_size,
            "dtype": self.case.dtype,
            "batch": self.case.batch,
            "max_len": self.case.max_len,
            "length": self.length,
            "error": self.error,
            "estimate_us": None if self.error else round(1e6 * self.seconds, 1),
            "bytes": None if self.error else self.hbm_bytes,
            "groups": {
                name: {"estimate_us": round(1e6 * group.seconds, 1), "bytes": group.hbm_bytes}
                for name, group in self.groups.items()
            },
            "collectives": [
                {
                    "kind": one.collective.kind,
                    "bytes": one.collective.bytes,
                    "count": one.count,
                    "estimate_us": round(1e6 * one.seconds, 2),
                }
                for one in self.collectives
            ],
            "estimate_without_collectives_us": None if self.error else round(1e6 * self.seconds_apart, 1),
            "cache_bytes": self.cache_bytes,
            "memory": memory,
            "programs": self.programs,
            "note": self.note or None,
        }


class CostRequest(Protocol):
    """What the cost of a model is asked for with; None is the default."""

    targets: tuple[str, ...]
    dtype: str
    batch: int | None
    max_len: int | None
    length: int | None
    tp_size: int


def model_costs(
    model: str, request: CostRequest, flows: Sequence[Flow] = FLOWS, *, prefill: int | None = None
) -> Iterator[ModelCost]:
    """The decode step's cost for each flow and target, as they are done; or that of a chunk of `prefill` tokens.

    `model` is a Hub id, a folder or the path of a config.json. Raises ValueError for a length that does not fit the
    cache or an unknown target, and what `capture_model` and `compile_programs` raise.
    """
    max_len = request.max_len or DEFAULT_MAX_LEN
    length = request.length or max_len // 2
    if not 1 <= length <= max_len:
        raise ValueError(f"length must be from 1 to {max_len}, the length of the cache; got {length}")
    targets = [target_of(name, request.tp_size) for name in request.targets]
    plain: list[Program] = []
    for flow in flows:
        for target in targets:
            case = ModelCase(
                model,
                flow,
                ("prefill" if prefill else "decode",),
                request.batch or 1,
                max_len,
                request.dtype,
                generation=target.chip.name,
                tp_size=request.tp_size,
                prefill_chunk=prefill,
            )
            cost = ModelCost(case, target, length)
            try:
                programs = plain if flow == "plain" and plain else capture_model(case)
            except CacheTooLargeError as error:
                yield replace(cost, error=" ".join(" ".join(str(error).split()).split(" Next: ")[:1]))
                continue
            if flow == "plain":
                plain = programs
            yield _costed(cost, programs)


def _costed(cost: ModelCost, programs: Sequence[Program]) -> ModelCost:
    with tempfile.TemporaryDirectory(prefix="tpu-kernels-model-cost-") as folder:
        results = compile_programs(programs, cost.target.topology, dump_to=Path(folder))
        refused = next((result.error for result in results if result.error), None)
        if refused is not None:
            return replace(cost, error=refused, programs=len(programs))
        steering = _steering(cost) if cost.case.flow == "tpu-kernels" else {}
        parts = [_grouped(result, steering) for result in results]
    main, costs = results[0], [program for program, _ in parts]
    return replace(
        cost,
        seconds=_over(costs, programs, lambda program: program.seconds),
        seconds_apart=_over(costs, programs, lambda program: program.seconds_apart),
        groups={
            name: _sum([groups[name] for _, groups in parts], [program.runs for program in programs]) for name in GROUPS
        },
        collectives=_collectives(costs, programs),
        memory=main.memory,
        cache_bytes=StepGroups(parse_hlo(main.hlo)).cache_bytes,
        programs=sum(program.runs for program in programs),
        note=main.program.note,
    )


def _over(costs: Sequence[ProgramCost], programs: Sequence[Program], of: Callable[[ProgramCost], float]) -> float:
    """The sum over all runs."""
    return sum(of(cost) * program.runs for cost, program in zip(costs, programs, strict=True))


def _collectives(costs: Sequence[ProgramCost], programs: Sequence[Program]) -> tuple[CollectiveCost, ...]:
    found: defaultdict[Collective, list[tuple[float, float]]] = defaultdict(list)
    for cost, program in zip(costs, programs, strict=True):
        for op in cost.ops:
            if op.collective:
                found[op.collective] += [(op.seconds / op.times, op.source_seconds)] * op.times * program.runs
    return tuple(
        CollectiveCost(one, len(times), *(sum(each) / len(times) for each in zip(*times, strict=True)))
        for one, times in found.items()
    )


def _grouped(result: CompiledProgram, steering: Mapping[str, Arguments]) -> tuple[ProgramCost, dict[Group, GroupCost]]:
    def arguments(instruction: HloInstruction) -> Arguments:
        return steering.get(instruction.name.rsplit(".", 1)[0], {})

    assert result.dump is not None  # it was asked for
    cost = program_cost(result.hlo, read_dumps(result.dump), result.target.chip, arguments)
    return cost, by_group(cost, StepGroups(parse_hlo(result.hlo)))


def by_group(cost: ProgramCost, groups: StepGroups) -> dict[Group, GroupCost]:
    """The costs of a program's instructions, summed by what they are for.

    Copies that run beside the program queue for the HBM, so a wait for one of them is a wait for all that were started
    before: its time is shared among these by their bytes.
    """
    seconds: defaultdict[Group, float] = defaultdict(float)
    read: Counter[Group] = Counter()
    written: Counter[Group] = Counter()
    queued: Counter[Group] = Counter()
    for op in cost.ops:
        group = groups.group(op.name)
        read[group] += op.read_bytes
        written[group] += op.written_bytes
        if op.opcode.endswith("-start"):
            queued[group] += op.hbm_bytes
        if op.opcode.endswith("-done") and queued.total() and group != "collectives":
            for name, waited_for in queued.items():
                seconds[name] += op.seconds * waited_for / queued.total()
            queued.clear()
        else:
            seconds[group] += op.seconds
    return {name: GroupCost(seconds[name], read[name], written[name]) for name in GROUPS}


def _sum(costs: Sequence[GroupCost], runs: Sequence[int]) -> GroupCost:
    pairs = list(zip(costs, runs, strict=True))
    return GroupCost(
        sum(cost.seconds * times for cost, times in pairs),
        sum(cost.read_bytes * times for cost, times in pairs),
        sum(cost.written_bytes * times for cost, times in pairs),
    )


def _steering(cost: ModelCost) -> Mapping[str, Arguments]:
    """What steers the model's attention kernels where `length` positions are valid; no other kernel is steered.

    Windows are left out, so a layer with a window costs at most what is estimated.
    """
    from tpu_kernels.plan import plan_tpu_kernels  # it loads torch
    from tpu_kernels.plan.model_view import resolve_model

    config = resolve_model(cost.case.model).config.get_text_config(decoder=True)
    generation = cost.target.chip.name
    for entry in plan_tpu_kernels(cost.case.model, generation=generation).swapped:
        if entry.kernel is None or entry.kernel.op != "attention":
            continue
        sizes, heads = entry.facts.sizes, config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        share = cost.case.tp_size
        heads, kv_heads = max(heads // share, 1), max(kv_heads // share, 1)
        shape = AttentionShape(
            cost.case.batch,
            heads,
            kv_heads,
            cost.case.prefill_chunk or 1,
            cost.case.max_len,
            sizes["head_dim"],
            sizes["value_head_dim"],
        )
        case = AttentionCase(entry.path, cost.case.model, shape, scale=1.0)
        try:
            source, tuning = kernel_source(entry.kernel), entry.kernel.tuning(generation)
            subject = attention_subject(case, source, cost.case.dtype, cost.length, **tuning)
        except KernelLoadError:
            continue
        (scheduled,) = schedule_jobs([subject.job], cost.target.name, values=[subject.values])
        return scheduled.steering
    return {}

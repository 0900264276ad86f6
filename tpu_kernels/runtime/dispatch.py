"""The one place where a call takes its kernel or a fallback, and where that is counted.

A decision depends on shapes, dtypes and flags alone. `LayerDispatch.decide` is marked as constant for Dynamo: while a
graph is traced it runs once, for real, and its answer is baked into the graph; the graph's later runs are counted by
whoever runs it (`Program`). An eager call decides, and counts, every time.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from tpu_kernels.plan.binding import Binding
from tpu_kernels.plan.match import LayerFacts, not_preferred, rejections
from tpu_kernels.runtime.hub import LoadedKernel
from tpu_kernels.runtime.ranks import Ranks, alone
from tpu_kernels.specs.vocabulary import Mode

LAYER_ATTRIBUTE = "_tpu_kernels_layer"
"""Of an enabled module: its LayerDispatch."""


@dataclass(frozen=True)
class Decision:
    """What a layer's call runs: a kernel (its spec's name), or what the fallback is called, and why."""

    path: str
    phase: str
    chosen: str
    reason: str
    is_kernel: bool
    left_to_xla: bool = False
    """The kernel would be right, but is not known to win this call."""


@dataclass
class Program:
    """One compiled graph of a model: what its layers decided when it was traced, and how often it ran.

    `traces` counts how often Dynamo traced it: more than once means that something in its inputs was not static.
    `compile_seconds` is the wall time of its first run, in which it was traced and compiled.
    """

    name: str
    batch: int = 0
    tokens: int = 0
    cache_length: int = 0
    compile_seconds: float = 0.0
    decisions: dict[str, Decision] = field(default_factory=dict)
    traces: Counter[str] = field(default_factory=Counter)
    runs: int = 0

    def note(self, decision: Decision) -> None:
        self.decisions[decision.path] = decision
        self.traces[decision.path] += 1


_tracing_program: ContextVar[Program | None] = ContextVar("tpu_kernels_program", default=None)


@contextmanager
def traced_into(program: Program) -> Iterator[None]:
    """Decisions taken while a graph is traced inside belong to `program`."""
    token = _tracing_program.set(program)
    try:
        yield
    finally:
        _tracing_program.reset(token)


class CallLog:
    """Decisions of eager calls with their counts, and the programs whose runs count for traced decisions."""

    def __init__(self) -> None:
        self.eager: dict[Decision, int] = {}
        self.foreign: dict[Decision, int] = {}
        self.programs: list[Program] = []
        self.proven: set[tuple[Any, ...]] = set()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside do not count: nobody asked for them but ourselves."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CallLog:
        """The log of a copied model starts empty: the calls were the original's."""
        copied = memo[id(self)] = CallLog()
        return copied

    def note(self, decision: Decision, *, tracing: bool) -> None:
        if self._paused:
            return
        if not tracing:
            self.eager[decision] = self.eager.get(decision, 0) + 1
            return
        program = _tracing_program.get()
        if program is not None:
            program.note(decision)
        else:
            self.foreign[decision] = 0

    def retract(self, decision: Decision) -> None:
        """Take back one eager call."""
        count = self.eager.pop(decision, 0) - 1
        if count > 0:
            self.eager[decision] = count

    def steps(self) -> dict[Decision, int]:
        """How many steps took each decision; 0 for a graph that was traced outside of `generate`."""
        counts = dict(self.foreign)
        for decision, count in self.eager.items():
            counts[decision] = counts.get(decision, 0) + count
        for program in self.programs:
            for decision in program.decisions.values():
                counts[decision] = counts.get(decision, 0) + program.runs
        return counts


class LayerDispatch:
    """What is known of one enabled layer when it is called: its path, its kernel (or why it has none), its fallback.

    `binding` says how the call of a module becomes the kernel's, and `facts` what the plan knew of it; attention needs
    neither. With `only_where_preferred` the kernel takes the calls that its spec says it wins.
    """

    def __init__(
        self,
        path: str,
        op: str,
        kernel: LoadedKernel | None,
        reason: str,
        *,
        fallback: str,
        generation: str | None,
        log: CallLog,
        only_where_preferred: bool = True,
        facts: LayerFacts | None = None,
        binding: Binding | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.path = path
        self.op = op
        self.kernel = kernel
        self.reason = reason
        self.fallback = fallback
        self.generation = generation
        self.tuning = kernel.spec.tuning(generation) if kernel is not None else {}
        self.log = log
        self.only_where_preferred = only_where_preferred
        self.facts = facts
        self.binding = binding
        self.ranks = ranks or alone()
        self.on_failure: Callable[[LayerDispatch, Exception], bool] | None = None
        self.owner: torch.nn.Module | None = None
        self._retired: LoadedKernel | None = None
        self._last: Decision | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerDispatch | None:
        """A copy belongs to the copy of the enabled model; a module that is copied out of it is a plain one."""
        if self.owner is not None and id(self.owner) not in memo:
            return None
        copied = memo[id(self)] = LayerDispatch.__new__(LayerDispatch)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def retire(self, reason: str) -> None:
        """Do without the kernel from now on."""
        self._retired, self.kernel, self.reason = self.kernel, None, reason

    def take_small_tuning(self) -> bool:
        """Use the spec's smallest blocks from now on. False if they are in use already, or the spec names none."""
        if self.kernel is None:
            return False
        small = self.kernel.spec.small_tuning(self.generation)
        changed = small != self.tuning
        self.tuning = small
        return changed

    def reinstate(self, specs: list[str]) -> None:
        """Take the retired kernel back if it is one of `specs`."""
        if self._retired is not None and self._retired.spec.name in specs:
            self.kernel, self._retired = self._retired, None

    def _against(self, facts: LayerFacts, obstacle: str | None) -> str | None:
        """Why the kernel cannot take the call, or None."""
        if self.kernel is None:
            return self.reason
        if obstacle is not None:
            return obstacle
        found = rejections(self.kernel.spec, facts, self.generation)
        return "; ".join(str(rejection) for rejection in found) or None

    def _losing(self, facts: LayerFacts, mode: Mode) -> str | None:
        """Why the kernel should not take a call that it could, or None."""
        if self.kernel is None or not self.only_where_preferred:
            return None
        return not_preferred(self.kernel.spec, facts, self.generation, mode)

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def decide(
        self,
        class_name: str,
        dtype: str,
        sizes: tuple[tuple[str, int], ...],
        features: tuple[str, ...],
        obstacle: str | None,
        fallback: str,
        phase: str,
        tracing: bool,
    ) -> bool:
        """Whether the call goes to the kernel; the decision is logged."""
        facts = LayerFacts(class_name, dtype, dict(sizes), frozenset(features))
        against = self._against(facts, obstacle)
        losing = self._losing(facts, "compiled" if tracing else "eager") if against is None else None
        program = _tracing_program.get() if tracing else None
        if program is not None:
            phase = "decode" if program.tokens == 1 else "prefill"
        if against is None and losing is None and self.kernel is not None:
            decision = Decision(self.path, phase, self.kernel.spec.name, "", True)
        else:
            decision = Decision(self.path, phase, fallback, against or losing or "", False, losing is not None)
        if program is None and not self.ranks.is_alone:
            key = (self.path, class_name, dtype, sizes, features, obstacle, tracing, self.kernel is None)
            decision = self._agreed(decision, fallback, key)
        self.log.note(decision, tracing=tracing)
        self._last = decision
        return decision.is_kernel

    def _agreed(self, decision: Decision, fallback: str, key: tuple[Any, ...]) -> Decision:
        """The decision of all ranks: the kernel where every one of them can take it.

        A program's decisions are compared all at once, when it is compiled.
        """
        own = "" if decision.is_kernel else decision.reason or "it was decided so"
        answers = self.ranks.agree_once(f"a call of {self.path}", key, own)
        if len(set(answers)) == 1:
            return decision
        return Decision(decision.path, decision.phase, fallback, self.ranks.first(answers) or "", False)

    def call_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The kernel's output; whatever it raises goes through."""
        if self.kernel is None:
            raise RuntimeError(f"{self.path} has no kernel")
        return self.kernel.entry(*args, **kwargs, **self.tuning)

    def note_fallback(self, fallback: str) -> None:
        """The eager call that was just decided for the kernel ran the fallback in the end."""
        if self._last is not None:
            self.log.retract(self._last)
            decision = Decision(self.path, self._last.phase, fallback, self.reason, False)
            self.log.note(decision, tracing=False)

    def try_kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The kernel's output in an eager call, or None where it failed and `on_failure` let the fallback run.

        `on_failure` answers whether the kernel is worth another try.

        Eager programs are compiled and run later, so the first call of its kind is waited for.
        """
        tensors = tuple((arg.dtype, arg.shape) for arg in args if isinstance(arg, torch.Tensor))
        kind = self.kernel and self.kernel.spec.name, tensors, tuple(sorted(kwargs.items()))
        if kind in self.log.proven and not self.ranks.is_alone:
            return self.call_kernel(*args, **kwargs)
        output, failure = None, None
        try:
            output = self.call_kernel(*args, **kwargs)
            if kind not in self.log.proven:
                output.cpu()
        except Exception as error:
            failure = error
        if not self.ranks.is_alone:
            own = "" if failure is None else str(failure) or type(failure).__name__
            said = self.ranks.first(self.ranks.agree(f"the first call of {self.path}", own))
            failure = RuntimeError(said) if said else None
        if failure is None:
            self.log.proven.add(kind)
            return output
        if self.on_failure is None:
            raise failure
        return self.try_kernel(*args, **kwargs) if self.on_failure(self, failure) else None

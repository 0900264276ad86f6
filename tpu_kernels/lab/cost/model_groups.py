"""What each instruction of a model's compiled step is for: weights, the kinds of layers, copies of the cache,
collectives between chips, the rest.

Told from the data alone. Arrays that come in and go out again are the cache, other arrays of two and more dimensions
that come in are weights. Copies are followed back to what they copy. Only a Pallas kernel says by its name which kind
of layer it is: the weights that it reads count there, and products that XLA makes itself are all under weights.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from functools import cached_property
from typing import Final, Literal, get_args

from tpu_kernels.lab.cost.collectives import collective_of
from tpu_kernels.lab.cost.hlo import VMEM, Array, HloInstruction, HloModule

Group = Literal["weights", "attention", "mlp", "experts", "norm", "rotary", "cache copies", "collectives", "rest"]
GROUPS: Final[tuple[Group, ...]] = get_args(Group)

_MOVES: Final = frozenset(
    {"bitcast", "copy", "copy-start", "copy-done", "slice", "slice-start", "slice-done", "get-tuple-element", "reshape"}
    | {"transpose", "broadcast", "dynamic-update-slice"}
)
_JOINS_SLICES: Final = 'custom_call_target="ConcatBitcast"'
_KERNEL: Final = 'custom_call_target="tpu_custom_call"'
_ATTENTION: Final = re.compile(r"attention|attend|softmax", re.IGNORECASE)
_KERNELS: Final[tuple[tuple[str, Group], ...]] = (
    ("attention", "attention"),
    ("experts", "experts"),
    ("mlp", "mlp"),
    ("norm", "norm"),
    ("rotary", "rotary"),
)
"""Part of a Pallas kernel's name, and the kind of layer that has such a kernel."""
_NORM: Final = re.compile(r"norm|rsqrt|^(jit\(\w+\)/)?(mean|pow|var)\b", re.IGNORECASE)
_SMALLEST_STATE: Final = 2**12
"""Elements from which an array that comes in and goes out counts as cache: counters are smaller."""

Kind = tuple[str, tuple[int, ...]]


def _kind(array: Array) -> Kind:
    return array.dtype, array.sizes


def _elements(array: Array) -> int:
    return math.prod(array.sizes)


def _moves(one: HloInstruction) -> bool:
    """Whether it computes nothing: a copy, a view, a piece, pieces put together."""
    return one.opcode in _MOVES or _JOINS_SLICES in one.attributes


def _kind_of_kernel(name: str) -> Group | None:
    return next((group for part, group in _KERNELS if part in name), None)


class StepGroups:
    """The groups of the instructions of one optimised module."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._by_name = {one.name: one for one in module.entry}
        self._users: dict[str, list[HloInstruction]] = defaultdict(list)
        for one in module.entry:
            for operand in one.operands:
                self._users[operand].append(one)
        self._known: dict[str, Group] = {}

    @cached_property
    def cache(self) -> tuple[Array, ...]:
        """The arrays of the cache, as they come in."""
        results = {_kind(array) for array in self._module.entry[-1].results}
        return tuple(
            array
            for one in self._module.entry
            if one.opcode == "parameter"
            for array in one.results
            if len(array.sizes) > 2 and _elements(array) >= _SMALLEST_STATE and _kind(array) in results
        )

    @property
    def cache_bytes(self) -> int:
        return sum(array.bytes for array in self.cache)

    def group(self, name: str) -> Group:
        """The group of the instruction of that name; one in a loop's body goes by the name of its operation."""
        if name not in self._known:
            one = self._by_name.get(name)
            self._known[name] = "rest" if one is None else self._found(one)
        return self._known[name]

    def _found(self, one: HloInstruction) -> Group:
        if collective_of(self._module, one):
            return "collectives"
        if one.ends_copy and one.operands:
            return self.group(one.operands[0])
        if _KERNEL in one.attributes and (kind := _kind_of_kernel(one.name)):
            return kind
        if self._is_attention(one):
            return "attention"
        sources = self._sources(one)
        if self._is_cache(sources) or any(_kind(array) in self._kinds for array in one.results):
            if not _moves(one) and not any(_kind(array) in self._kinds for array in one.results):
                return "attention"
            return "attention" if self._feeds_attention(one) else "cache copies"
        if any(len(array.sizes) > 1 and _elements(array) >= _SMALLEST_STATE for array in sources):
            return "weights"
        return "norm" if _NORM.search(one.op_name) else "rest"

    @cached_property
    def _kinds(self) -> set[Kind]:
        return {_kind(array) for array in self.cache}

    def _is_attention(self, one: HloInstruction) -> bool:
        if _moves(one):
            return False
        return bool(_ATTENTION.search(one.op_name)) or (
            _KERNEL in one.attributes and self._is_cache(self._sources(one))
        )

    def _is_cache(self, sources: set[Array]) -> bool:
        return any(_kind(array) in self._kinds for array in sources)

    def _sources(self, one: HloInstruction) -> set[Array]:
        """The arrays that come in from which `one` reads, directly or through copies of them."""
        found: set[Array] = set()
        waiting, seen = [one], {one.name}
        while waiting:
            for name in waiting.pop().operands:
                operand = self._by_name.get(name)
                if operand is None or name in seen:
                    continue
                seen.add(name)
                if operand.opcode == "parameter":
                    found.update(operand.results)
                elif _moves(operand):
                    waiting.append(operand)
        return found

    def _feeds_attention(self, one: HloInstruction) -> bool:
        """Whether attention reads what `one` put into VMEM from there: then it is the reading of the cache."""
        waiting, seen = [one], {one.name}
        while waiting:
            current = waiting.pop()
            if not current.results or (current.results[0].space != VMEM and not current.is_free):
                continue
            for user in self._users[current.name]:
                if self._is_attention(user):
                    return True
                if _moves(user) and user.name not in seen:
                    seen.add(user.name)
                    waiting.append(user)
        return False

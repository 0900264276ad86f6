"""What structure cannot tell of a module is found out by running a small copy of it on the CPU.

The copy has the module's class, settings and children, and random weights of its own; a large dimension is made small
first. So a model's weights are neither read nor needed: a module on the meta device is probed alike. A candidate is
right when it gives what the module gives in float32, and in bfloat16 as closely as rounding allows; among several
the one that rounds like the module is taken.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeVar

import torch
from transformers import PreTrainedConfig

T = TypeVar("T")

FLOAT32_TOLERANCE: Final = 2e-5
"""Of the largest output: float32 sums in another order."""

BFLOAT16_TOLERANCE: Final = 2.0**-6
"""Of an output, and of the mean size of outputs where it is smaller: a last place of bfloat16 is 2^-8 to 2^-7."""

_INNER: Final = frozenset({*vars(torch.nn.Module()), "_is_hf_initialized"})
"""What every module has of its own."""

_SCALARS: Final = (bool, int, float, str, type(None))


class ProbeError(Exception):
    """A module could not be copied, or its copy could not be run; the message says why in one line."""


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """One way in which a module may compute: `run` does the same in plain torch, on the probe's module and inputs."""

    value: T
    run: Callable[..., torch.Tensor]


def settings_of(module: torch.nn.Module) -> dict[str, Any]:
    """The plain values among a module's own attributes."""
    own = {name: value for name, value in vars(module).items() if isinstance(value, _SCALARS)}
    return {name: value for name, value in own.items() if name not in ("training", "_is_full_backward_hook")}


def kind_of(module: torch.nn.Module) -> Any:
    """Hashable: equal for modules of one model that compute alike, their weights apart."""
    children = tuple((name, kind_of(child)) for name, child in module.named_children())
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)
    settings = settings_of(module)
    # What cannot be compared counts as itself: a config, a function, a tensor that is no buffer.
    others = {name: id(value) for name, value in vars(module).items() if _counts(name) and name not in settings}
    known = tuple(sorted((name, type(value), value) for name, value in settings.items() if value is not None))
    return type(module), tuple(map(str, known)), tuple(sorted(others.items())), shapes, children


def _counts(name: str) -> bool:
    return name not in _INNER and name != "forward" and not name.startswith("_tpu_kernels")


def tensors_taken(module: torch.nn.Module) -> tuple[str, ...] | None:
    """Names of the arguments that a call of the module must give; None if its forward cannot be read so."""
    try:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.default is each.empty and each.kind in plain]
    return tuple(each.name for each in required)


def small_copy(
    module: torch.nn.Module, dtype: torch.dtype, sizes: Mapping[int, int] | None = None, seed: int = 0
) -> torch.nn.Module:
    """A copy on the CPU in which every tensor is random, and each dimension of `sizes` has its small value.

    Whole numbers among the settings that equal such a dimension, alone or in a tuple, change with it. Weights are in
    the order of 1 over the root of their last dimension, vectors of 1 and away from 0. Raises ProbeError.
    """
    generator = torch.Generator().manual_seed(seed)
    small = dict(sizes or {})
    memo: dict[int, Any] = {}
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for tensor in tensors.values():
                if tensor is not None and id(tensor) not in memo:
                    memo[id(tensor)] = _random_like(tensor, dtype, small, generator)
        for name, value in vars(each).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()  # a user's hooks are not for our calls
            elif name == "forward":
                memo[id(value)] = None
            elif isinstance(value, PreTrainedConfig):
                memo[id(value)] = SimpleNamespace(_experts_implementation="eager", hidden_act=None)
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the class keeps on itself
        raise ProbeError(f"it cannot be copied: {_line(error)}") from error
    for part in copied.modules():
        vars(part).pop("forward", None)
        for name, value in list(vars(part).items()):
            if type(value) is int and value in small:
                vars(part)[name] = small[value]
            elif isinstance(value, tuple) and all(type(each) is int for each in value):
                vars(part)[name] = tuple(small.get(each, each) for each in value)
    return copied.eval()


def _random_like(
    tensor: torch.Tensor, dtype: torch.dtype, small: Mapping[int, int], generator: torch.Generator
) -> torch.Tensor:
    shape = [small.get(size, size) for size in tensor.shape]
    if not tensor.is_floating_point():
        return torch.zeros(shape, dtype=tensor.dtype)
    noise = torch.randn(shape, generator=generator)
    values = (0.3 * noise + 0.7 if len(shape) < 2 else noise * shape[-1] ** -0.5).to(dtype)
    return torch.nn.Parameter(values, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else values


def find(
    make: Callable[[torch.dtype], tuple[Callable[..., Any], Sequence[Any]]],
    candidates: Iterable[Sequence[Candidate[T]]],
    *,
    or_nearer: bool = False,
) -> T | None:
    """The candidate that computes what the module does, or None.

    make        for a dtype, what to call (a copy of the module) and with what; candidates get both, the callee first
    candidates  in groups that differ in rounding alone, so that float32 tells them apart from the other groups and
                bfloat16 from each other
    or_nearer   take a candidate, too, that is no further in bfloat16 from the module in float32 than the module is: one
                that rounds less often

    A candidate that raises is wrong. Raises ProbeError where the module itself does.
    """
    exact, near = _Comparison(*make(torch.float32)), None
    for group in candidates:
        if not exact.error(group[0], _float32_error) <= 1.0:  # not a number is wrong
            continue
        near = near or _Comparison(*make(torch.bfloat16))
        errors = [near.error(candidate, _bfloat16_error) for candidate in group]
        best = min(range(len(group)), key=errors.__getitem__)
        if errors[best] <= 1.0:
            return group[best].value
        if not or_nearer:
            continue
        shares = [near.share_of_own_error(candidate) for candidate in group]
        best = min(range(len(group)), key=shares.__getitem__)
        if shares[best] <= 1.0:
            return group[best].value
    return None


class _Comparison:
    """What the module gives for some inputs, to compare candidates with."""

    @torch.no_grad()
    def __init__(self, callee: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self._callee, self._inputs = callee, inputs
        try:
            expected = callee(*(each.clone() if isinstance(each, torch.Tensor) else each for each in inputs))
        except Exception as error:  # the model's own code
            raise ProbeError(f"it does not run by itself: {_line(error)}") from error
        usable = isinstance(expected, torch.Tensor) and bool(expected.isfinite().all())
        self._expected: torch.Tensor | None = expected if usable else None
        self._truth: torch.Tensor | None = None

    @torch.no_grad()
    def error(self, candidate: Candidate[Any], measure: Callable[[torch.Tensor, torch.Tensor], float]) -> float:
        """By `measure`; infinite for a candidate that raises, or gives another shape or dtype."""
        expected = self._expected
        if expected is None:
            return float("inf")
        try:
            got = candidate.run(self._callee, *self._inputs)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return float("inf")
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return float("inf")
        return measure(got.double(), expected.double())

    @torch.no_grad()
    def share_of_own_error(self, candidate: Candidate[Any]) -> float:
        """How far the candidate is from the module in float32, in units of how far the module itself is (root mean
        square over all outputs); infinite for one that raises or gives something else."""
        if self._truth is None and self._expected is not None:
            callee = self._callee
            exact = copy.deepcopy(callee).float() if isinstance(callee, torch.nn.Module) else callee
            self._truth = exact(*(_as_float32(each) for each in self._inputs)).double()
            self._sizes = self._truth.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        truth, expected = self._truth, self._expected
        if truth is None or expected is None:
            return float("inf")

        def distance(outputs: torch.Tensor) -> float:
            return float(((outputs - truth) / self._sizes).square().mean().sqrt())

        own = distance(expected.double())
        return self.error(candidate, lambda got, _: distance(got) / max(own, 1e-30))


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:160]


def _float32_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of the tolerance."""
    scale = expected.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return float(((got - expected).abs() / scale).max()) / FLOAT32_TOLERANCE


def _bfloat16_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The share of outputs that differ; infinite if one of them does by more than the tolerance."""
    scale = torch.maximum(expected.abs(), expected.abs().mean(-1, keepdim=True)).clamp_min(1e-30)
    if not float(((got - expected).abs() / scale).max()) <= BFLOAT16_TOLERANCE:
        return float("inf")
    return float((got != expected).double().mean())

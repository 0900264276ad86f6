"""The named cases of every op, by the op's name. `tpu_kernels.ops.<op>.cases` is imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final, cast

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.ops.case import OpCase

OPS: Final = ("attention", "mlp", "experts", "norm", "rotary")

OPTIONS: Final = {"batch": "--batch", "max_len": "--max-len", "length": "--length", "tokens": "--tokens"}
"""Sizes that a command can change, and its options for them."""


def cases_of(op: str, function: str | None = None) -> tuple[OpCase, ...]:
    """The full-size cases of `op`, of all its functions or of `function` alone.

    The cases of `function` are those whose `function` it is; where all cases of the op share one function, they are all
    of them, whatever `function` says: the name is then that of a spec, and the JAX function has another.

    Raises SpecError for an op without cases, and for a function that no case of the op has.
    """
    return _of_function(op, _cases(op, "CASES"), function)


def small_cases_of(op: str, function: str | None = None) -> tuple[OpCase, ...]:
    """The same in sizes for interpreters; their names end in "/small"."""
    return _of_function(op, _cases(op, "SMALL_CASES"), function)


def representatives_of(op: str, function: str | None = None) -> tuple[OpCase, ...]:
    """Full-size cases that differ in kind, the most telling first; all cases where none is named for the function."""
    cases = cases_of(op, function)
    names = [str(name) for name in _module(op).REPRESENTATIVES]
    found = [case for name in names for case in cases if name in names_of(case)]
    return tuple({case.name: case for case in found}.values()) or cases


def cases_named(op: str, names: Iterable[str], function: str | None = None) -> list[OpCase]:
    """The full-size cases of those names, in the op's order: a case ("NAME/decode") or all of a model ("NAME").

    Raises ValueError for a name that no case has, SpecError as `cases_of` does.
    """
    wanted, cases = set(names), cases_of(op, function)
    refuse_unknown(wanted, cases)
    return [case for case in cases if wanted & names_of(case)]


def refuse_unknown(names: Iterable[str], cases: Sequence[OpCase]) -> None:
    """Raise ValueError where `names` has one that is neither a case nor a model of `cases`."""
    known = {name for case in cases for name in names_of(case)}
    if unknown := sorted(set(names) - known):
        near = [close for name in unknown for close in get_close_matches(name, known, n=1)]
        models = dict.fromkeys(case.name.split("/")[0] for case in cases)
        raise ValueError(
            explain(
                "there is no such case.",
                needs="a model or one of its cases: " + ", ".join(models),
                got=", ".join(unknown),
                next_step=f"did you mean {', '.join(near)}?" if near else None,
            )
        )


def resized(case: OpCase, **sizes: int | None) -> OpCase:
    """The case with other sizes, where any is given: `batch`, `max_len`, `length`, `tokens`.

    The case has a method `resized` for those that it knows. Raises ValueError for one that it does not know, and for a
    value that does not fit.
    """
    given = {name: value for name, value in sizes.items() if value is not None}
    if not given:
        return case
    method: Callable[..., Any] | None = getattr(case, "resized", None)
    known = () if method is None else tuple(inspect.signature(method).parameters)
    if unknown := [name for name in given if name not in known]:
        options = [OPTIONS.get(name, name) for name in known]
        raise ValueError(
            explain(
                f"{case.name}, a call of `{case.function}`, has no such size.",
                needs=f"one of {', '.join(options)}" if options else "no option of size: the case has them all",
                got=", ".join(OPTIONS.get(name, name) for name in unknown),
            )
        )
    assert method is not None
    return cast(OpCase, method(**given))


def names_of(case: OpCase) -> set[str]:
    """The names by which people mean it: its own, and that of its model, which stands before the "/"."""
    return {case.name, case.name.split("/")[0]}


def _of_function(op: str, cases: tuple[OpCase, ...], function: str | None) -> tuple[OpCase, ...]:
    functions = {case.function for case in cases}
    if function is None or len(functions) == 1:
        return cases
    if function not in functions:
        raise SpecError(
            explain(
                f"There are no {op} cases of `{function}`.",
                needs=f"a function that has named cases: {', '.join(sorted(functions))}",
                got=function,
            )
        )
    return tuple(case for case in cases if case.function == function)


def _cases(op: str, name: str) -> tuple[OpCase, ...]:
    return tuple(getattr(_module(op), name))


def _module(op: str) -> ModuleType:
    name = f"tpu_kernels.ops.{op}.cases"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "?"):
            raise
        raise SpecError(
            explain(f"The op `{op}` has no named cases.", needs=f"one of {', '.join(OPS)}", got=f"no module {name}")
        ) from None

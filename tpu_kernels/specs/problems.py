"""From a pydantic ValidationError to a SpecError that says what, where, expected, got and next."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.specs.origin import KeyPath, Origin

_NEXT = {
    "bad_repo_id": "write it as ORG/NAME, for example `kernels-community/relu`.",
    "version_and_revision": "keep one: `version: 1` follows branch v1, `revision` pins a commit or tag.",
    "no_pin": "add `version: 1` for the branch v1, or `revision` for a commit, tag or branch.",
    "not_an_identifier": "use letters, digits and underscores, and begin with a letter.",
    "empty_dimension": "give at least one of min, max, multiple_of, or leave the dimension out.",
    "empty_preference": "give a mode, dtypes, generations or a size, or leave it out: `prefer: []` prefers nothing.",
    "function_and_layer": "keep the one that the kernel exports for this op.",
    "no_entry": "add `function: NAME` or `layer: CLASS`, as the kernel exports it.",
    "bad_name": "write it as `OP/NAME` in lower case, for example `attention/static-attention`.",
    "sdpa_without_attention": "use `auto` or `eager`.",
    "idle_tolerance": "remove it, or add the dtype to requires.dtypes.",
}

_VERSION = ("schema_version",)

_TYPES = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


@dataclass(frozen=True)
class Problem:
    """One fault of a spec at one key."""

    key: KeyPath
    what: str
    needs: str | None = None
    got: str | None = None
    next_step: str | None = None
    missing: bool = False


def fault(
    kind: str, message: str, *, key: str = "", word: str = "", known: tuple[str, ...] = ()
) -> PydanticCustomError:
    """A validation error of our own, raised inside a validator.

    key    the key, below the failing section, that it is about
    word   the unknown word, where it is about one, and
    known  the words that would have been right
    """
    context = {"message": message, "key": key, "word": word, "known": known}
    return PydanticCustomError(kind, "{message}", context)


def spec_error(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], origin: Origin) -> SpecError:
    """The SpecError for all faults that pydantic found in `data`.

    The first in the file comes first, missing keys last. A schema_version that is not ours makes every other
    fault meaningless, so it stands alone.
    """
    problems = [_problem(detail, model, data) for detail in error.errors(include_url=False)]
    problems = [problem for problem in problems if problem.key == _VERSION] or problems
    problems.sort(key=lambda problem: (problem.missing, origin.line_of(problem.key) or 0))
    first, *others = problems
    message = explain(
        f"{origin.cite(first.key)}: {first.what}",
        needs=first.needs,
        got=first.got,
        next_step=first.next_step,
    )
    for other in others:
        message += f"\nAlso {origin.cite(other.key)}: {other.what}"
    file = str(origin.file) if origin.file else None
    return SpecError(message, file=file, line=origin.line_of(first.key))


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """`did you mean ...?` for the nearest known word, or None where nothing is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None


def _problem(detail: ErrorDetails, model: type[BaseModel], data: Mapping[str, Any]) -> Problem:
    kind, got, context = detail["type"], detail["input"], detail.get("ctx", {})
    key = _key_path(detail)
    at = ".".join(key)
    if "message" in context:
        return _own_fault(key, kind, context)
    if kind == "extra_forbidden":
        known = _keys_of(model, key[:-1], data)
        return Problem(
            key,
            f"unknown key `{at}`.",
            needs=_one_of(known),
            next_step=did_you_mean(key[-1], known) or "remove the key.",
        )
    if kind in ("missing", "union_tag_not_found"):
        missing = at if kind == "missing" else f"{at}.kind"
        what = f"the key `{missing}` is missing."
        return Problem(key, what, next_step=f"add `{missing}`.", missing=True)
    if kind == "union_tag_invalid":
        return _unknown_word((*key, "kind"), context.get("tag"), _words(context.get("expected_tags")))
    if key == _VERSION:
        return Problem(
            key,
            "this schema_version is not supported.",
            needs="schema_version: 1",
            got=_show(got),
            next_step="write the spec in version 1, or install a tpu-kernels that reads its version.",
        )
    if kind == "literal_error":
        return _unknown_word(key, got, _words(context.get("expected")))
    if kind in _TYPES:
        return Problem(key, f"`{at}` has the wrong type.", needs=_TYPES[kind], got=_show(got))
    return Problem(key, f"`{at}` is not valid.", needs=_lowered(detail["msg"]), got=_show(got))


def _key_path(detail: ErrorDetails) -> KeyPath:
    loc = [str(part) for part in detail["loc"]]
    if loc[:1] == ["source"] and len(loc) > 1:
        del loc[1]  # the tag of the union, which is no key of the file
    if loc[-1:] == ["[key]"]:
        loc.pop()
    own_key = str(detail.get("ctx", {}).get("key", ""))
    return (*loc, *own_key.split(".")) if own_key else tuple(loc)


def _own_fault(key: KeyPath, kind: str, context: Mapping[str, Any]) -> Problem:
    known, word = context["known"], context["word"]
    if not word:
        return Problem(key, f"{context['message']}.", next_step=_NEXT.get(kind))
    return Problem(
        key,
        f"{context['message']}.",
        needs=_one_of(known) if known else "nothing: there are none for this op",
        next_step=did_you_mean(word, known) or "remove it.",
    )


def _unknown_word(key: KeyPath, got: object, known: tuple[str, ...]) -> Problem:
    word = got if isinstance(got, str) else repr(got)
    at = ".".join(key)
    return Problem(
        key,
        f"unknown {at} `{word}`." if at == "op" else f"`{at}` has an unknown value.",
        needs=_one_of(known),
        got=_show(got),
        next_step=did_you_mean(word, known),
    )


def _keys_of(model: type[BaseModel], section: KeyPath, data: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that the section at that key path may have."""
    values: Any = data
    for key in section:
        if key.isdecimal():  # an item of a list: the same section
            values = values[int(key)] if isinstance(values, list | tuple) else {}
            continue
        annotation = model.model_fields[key].annotation
        values = values[key] if isinstance(values, Mapping) else {}
        kind = values.get("kind") if isinstance(values, Mapping) else None
        choices = list(_models_in(annotation))
        fitting = [part for part in choices if "kind" in part.model_fields and kind in _kinds(part)]
        model = (fitting or choices)[0]
    return tuple(model.model_fields)


def _models_in(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _words(expected: object) -> tuple[str, ...]:
    """The words of pydantic's "'a', 'b' or 'c'"."""
    return tuple(re.findall(r"'([^']*)'", str(expected)))


def _one_of(known: Iterable[str]) -> str:
    return f"one of {', '.join(known)}"


def _show(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]

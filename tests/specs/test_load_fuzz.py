"""Whatever bytes a file holds, reading it gives a valid spec or a SpecError with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.specs.test_load import GOOD
from tpu_kernels.errors import SpecError
from tpu_kernels.specs import KernelSpec, parse_spec

FILE = Path("/specs/fuzzed.yaml")
KEYS = [*KernelSpec.model_fields, "kind", "repo", "version", "revision", "dtypes", "head_dim", "min", "v6e"]
WORDS = ["attention", "hub", "bundled", "path", "a/b", "float32", "norm/x", "", "..", "\x00", "é", "1e-5"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=4),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), scalars), inner, max_size=4),
    ),
    max_leaves=8,
)


LINE_BREAKS = ("\n", "\r", "\x85", "\u2028", "\u2029")


def outcome(raw: bytes) -> KernelSpec | SpecError:
    try:
        return parse_spec(raw, file=FILE)
    except SpecError as error:
        return error


def check(raw: bytes) -> None:
    result = outcome(raw)
    event(type(result).__name__)
    if isinstance(result, KernelSpec):
        assert KernelSpec(**result.model_dump()).model_dump() == result.model_dump()
    else:
        text = raw.decode("utf-8", "replace")
        assert result.file == str(FILE)
        assert result.line is not None
        assert 1 <= result.line <= sum(map(text.count, LINE_BREAKS)) + 2
        assert f"{FILE}:{result.line}: " in str(result)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    check(raw)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abop:-[]{}&*!|>'\"#%@`,? \n\t10.e_<", max_size=60))
def test_any_yaml_punctuation(text: str) -> None:
    check(text.encode())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS), values), min_size=1, max_size=4))
def test_a_good_spec_with_some_values_replaced(changes: list[tuple[str, str, Any]]) -> None:
    data = yaml.safe_load(GOOD)
    for key, below, value in changes:
        inner = data.get(key)
        if isinstance(inner, dict):
            inner[below] = value
        else:
            data[key] = value
    check(yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 6), st.text(max_size=6))
def test_a_good_spec_with_some_characters_replaced(start: int, length: int, new: str) -> None:
    check((GOOD[:start] + new + GOOD[start + length :]).encode("utf-8", "surrogatepass"))

"""What a static-attention kernel takes and gives. No torch, no jax: plain shapes and names.

    static_attention(query, key, value, bounds, sinks=None, *, scale, softcap=None) -> [B, Hq, T, Dv]

| argument | shape | dtype | meaning |
|---|---|---|---|
| query | [B, Hq, T, D] | float32, bfloat16 | the new tokens; T = 1 is a decode step, T > 1 a prefill chunk |
| key | [B, Hkv, S, D] | as the query | the whole static cache; query head h reads head h // (Hq // Hkv) |
| value | [B, Hkv, S, Dv] | as the query | Dv may differ from D |
| bounds | [B, 1, T, 2] | int32 | first valid key, one past the last; empty if the second is not larger |
| sinks | [Hq] or None | any float | one more logit per head in the softmax's denominator |
| scale | float | | factor on the logits |
| softcap | float or None | | c in c * tanh(logit / c), after the scale and before the mask |

Causal order, left padding and sliding windows are all said through the bounds. A query whose interval is
empty gives a row of zeros, with or without sinks. Sums run in float32 at least. A kernel may take tuning
arguments of its own, by keyword.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpu_kernels.errors import explain

FEATURES: Final = (
    "causal",
    "left_padding",
    "sliding_window",
    "grouped_heads",
    "multi_query",
    "softcap",
    "sinks",
    "value_head_dim",
)
"""Names by which specs say what a kernel covers."""

DTYPES: Final = ("float32", "bfloat16")


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one call."""

    batch: int
    query_heads: int
    kv_heads: int
    queries: int
    """T: query positions."""
    length: int
    """S: positions of the static cache."""
    key_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.query_heads // self.kv_heads

    @property
    def is_decode(self) -> bool:
        return self.queries == 1

    @property
    def query_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.query_heads, self.queries, self.key_dim)

    @property
    def key_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.length, self.key_dim)

    @property
    def value_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.length, self.value_dim)

    @property
    def bounds_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, 1, self.queries, 2)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.query_heads, self.queries, self.value_dim)


def validate_call(
    *,
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    bounds: Sequence[int],
    sinks: Sequence[int] | None = None,
    dtypes: tuple[str, str, str] | None = None,
    bounds_dtype: str = "int32",
    softcap: float | None = None,
) -> AttentionShape:
    """The sizes of a call, from the shapes of its arguments.

    `dtypes` are the names of the dtypes of query, key and value ("bfloat16"); None leaves them unchecked.

    Raises:
        ValueError: the arguments do not fit together; the message says what was needed and what came.
    """
    shapes = {"query": tuple(query), "key": tuple(key), "value": tuple(value), "bounds": tuple(bounds)}
    for name, shape in shapes.items():
        if len(shape) != 4 or min(shape) < 1:
            raise _refused(f"{name} of four dimensions, none of them empty", f"{name} {list(shape)}")
    batch, query_heads, queries, key_dim = shapes["query"]
    _, kv_heads, length, value_dim = shapes["value"]
    if query_heads % kv_heads != 0:
        raise _refused(
            "query heads in equal groups, one group per key/value head",
            f"{query_heads} query heads, {kv_heads} key/value heads",
        )
    call = AttentionShape(batch, query_heads, kv_heads, queries, length, key_dim, value_dim)
    for name, wanted, layout in (
        ("key", call.key_shape, "[B, Hkv, S, D]"),
        ("value", call.value_shape, "[B, Hkv, S, Dv]"),
        ("bounds", call.bounds_shape, "[B, 1, T, 2]"),
    ):
        if shapes[name] != wanted:
            raise _refused(f"{name} {layout} = {list(wanted)}", f"{name} {list(shapes[name])}")
    if sinks is not None and tuple(sinks) != (query_heads,):
        raise _refused(f"sinks [Hq] = [{query_heads}]", f"sinks {list(sinks)}")
    if dtypes is not None and (len(set(dtypes)) != 1 or dtypes[0] not in DTYPES):
        raise _refused(f"query, key and value of one dtype, {' or '.join(DTYPES)}", ", ".join(dtypes))
    if bounds_dtype != "int32":
        raise _refused("bounds of dtype int32", bounds_dtype)
    if softcap is not None and softcap <= 0:
        raise _refused("softcap None or above 0", repr(softcap))
    return call


def used_features(
    shape: AttentionShape,
    *,
    window: int | None = None,
    left_padded: bool = False,
    softcap: float | None = None,
    sinks: bool = False,
) -> frozenset[str]:
    """Names of the features that a layer needs of a kernel (see FEATURES)."""
    present = {
        "causal": True,
        "left_padding": left_padded,
        "sliding_window": window is not None,
        "grouped_heads": 1 < shape.kv_heads < shape.query_heads,
        "multi_query": shape.kv_heads == 1 < shape.query_heads,
        "softcap": softcap is not None,
        "sinks": sinks,
        "value_head_dim": shape.value_dim != shape.key_dim,
    }
    return frozenset(name for name in FEATURES if present[name])


def _refused(needs: str, got: str) -> ValueError:
    return ValueError(explain("These arguments are no call of static attention.", needs=needs, got=got))

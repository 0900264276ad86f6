"""What a rotary kernel takes and gives. No torch, no jax: plain shapes and names.

    rotary(x, cos, sin, *, layout="half", rounding="each") -> [B, heads, T, D]

| argument | shape | dtype | meaning |
|---|---|---|---|
| x | [B, heads, T, D] | float32, bfloat16 | the heads of one tensor: queries, or keys |
| cos | [B or 1, T, R] | as x, or float32 | cosines by position; R is even and at most D |
| sin | as cos | as cos | sines |
| layout | str | | which numbers of a head are a pair |
| rounding | str | | where a result in bfloat16 is rounded |

The result is x * cos + turn(x) * sin in the first R numbers of each head, and x in the others. `turn` takes a pair
(a, b) to (-b, a). In the layout `half` the numbers i and i + R/2 are a pair, in `interleaved` 2i and 2i + 1. Number i
of a head meets number i of cos and sin in either layout: whoever calls prepares them in x's order.

With the rounding `each` both products are rounded to x's dtype, and then their sum. With `last` all is float32, and the
sum alone is rounded. A kernel may take tuning arguments of its own, by keyword.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpu_kernels.errors import explain

FEATURES: Final = ("half", "interleaved", "partial", "query_only", "round_each", "round_last")
"""Names by which specs say what a kernel covers."""

DTYPES: Final = ("float32", "bfloat16")
LAYOUTS: Final = ("half", "interleaved")
ROUNDINGS: Final = ("each", "last")


@dataclass(frozen=True)
class RotaryShape:
    """The sizes of one call."""

    batch: int
    heads: int
    positions: int
    """T."""
    head_dim: int
    """D."""
    rotary_dim: int
    """R: how many numbers of a head are turned."""


def validate_call(
    *,
    x: Sequence[int],
    cos: Sequence[int],
    sin: Sequence[int],
    layout: str = "half",
    rounding: str = "each",
    dtypes: tuple[str, str, str] | None = None,
) -> RotaryShape:
    """The sizes of a call, from the shapes of its arguments.

    `dtypes` are the names of the dtypes of x, cos and sin ("bfloat16"); None leaves them unchecked.

    Raises:
        ValueError: the arguments do not fit together; the message says what was needed and what came.
    """
    if len(tuple(x)) != 4 or min(x) < 1:
        raise _refused("x [B, heads, T, D], no dimension of it empty", f"x {list(x)}")
    batch, heads, positions, head_dim = x
    if len(tuple(cos)) != 3 or cos[0] not in (1, batch) or cos[1] != positions:
        raise _refused(f"cos [{batch} or 1, {positions}, R]", f"cos {list(cos)}")
    rotary_dim = cos[2]
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise _refused(f"an even R from 2 to {head_dim}", f"cos {list(cos)}")
    if tuple(sin) != tuple(cos):
        raise _refused(f"sin {list(cos)}, as cos", f"sin {list(sin)}")
    if layout not in LAYOUTS:
        raise _refused(f"a layout, {' or '.join(LAYOUTS)}", repr(layout))
    if rounding not in ROUNDINGS:
        raise _refused(f"a rounding, {' or '.join(ROUNDINGS)}", repr(rounding))
    if dtypes is not None:
        if dtypes[0] not in DTYPES:
            raise _refused(f"x of dtype {' or '.join(DTYPES)}", dtypes[0])
        if dtypes[1] != dtypes[2] or dtypes[1] not in (dtypes[0], "float32"):
            raise _refused(f"cos and sin of one dtype, {dtypes[0]} or float32", f"{dtypes[1]} and {dtypes[2]}")
    return RotaryShape(batch, heads, positions, head_dim, rotary_dim)


def used_features(
    *, head_dim: int, rotary_dim: int, layout: str = "half", rounding: str = "each", query_only: bool = False
) -> frozenset[str]:
    """Names of the features that a layer needs of a kernel (see FEATURES).

    `query_only`: the layer turns one tensor in a call, where most turn queries and keys together.
    """
    present = {
        "half": layout == "half",
        "interleaved": layout == "interleaved",
        "partial": rotary_dim < head_dim,
        "query_only": query_only,
        "round_each": rounding == "each",
        "round_last": rounding == "last",
    }
    return frozenset(name for name in FEATURES if present[name])


def _refused(needs: str, got: str) -> ValueError:
    return ValueError(explain("These arguments are no call of a rotary embedding.", needs=needs, got=got))

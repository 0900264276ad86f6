"""What a norm kernel takes and gives. No torch, no jax: plain shapes and names.

    norm(x, weight=None, bias=None, *, eps, center=False, offset=0.0, order="round_then_scale") -> [..., N]

| argument | shape | dtype | meaning |
|---|---|---|---|
| x | [..., N] | float32, bfloat16 | rows; each is divided by its root mean square |
| weight | [N], [heads, N] or None | see below | a factor per element; by head where x is [..., heads, N] |
| bias | as weight, or None | as weight | added last; only with `center` and a weight |
| eps | float | | added to the mean of the squares |
| center | bool | | take the mean of the row away first (LayerNorm) |
| offset | float | | added to the weight |
| order | str | | where a result in bfloat16 is rounded |

With n the normalized row in float32, `order` is

* `round_then_scale`: n is rounded to x's dtype, its product with (offset + weight) is, and the sum with the bias;
  offset + weight has the weight's dtype.
* `scale_then_round`: n * (offset + weight) + bias in float32, rounded once.
* `round_offset`: as scale_then_round, but offset + weight is rounded to the weight's dtype first.

Weight and bias have x's dtype. In the last two orders they may be float32 beside an x in bfloat16. A kernel may take
tuning arguments of its own, by keyword.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpu_kernels.errors import explain

FEATURES: Final = (
    "rms_norm",
    "layer_norm",
    "weight",
    "bias",
    "weight_offset",
    "round_then_scale",
    "scale_then_round",
)
"""Names by which specs say what a kernel covers."""

DTYPES: Final = ("float32", "bfloat16")
ORDERS: Final = ("round_then_scale", "scale_then_round", "round_offset")


@dataclass(frozen=True)
class NormShape:
    """The sizes of one call."""

    tokens: int
    """Rows, or groups of `heads` rows where the weight is by head."""
    heads: int | None
    """Of the weight; None if every row has the same weight."""
    hidden: int
    """N: elements of a row."""


def validate_call(
    *,
    x: Sequence[int],
    weight: Sequence[int] | None = None,
    bias: Sequence[int] | None = None,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
    dtypes: tuple[str, str | None, str | None] | None = None,
) -> NormShape:
    """The sizes of a call, from the shapes of its arguments.

    `dtypes` are the names of the dtypes of x, weight and bias ("bfloat16"); None leaves them unchecked.

    Raises:
        ValueError: the arguments do not fit together; the message says what was needed and what came.
    """
    sizes = tuple(x)
    if not sizes or min(sizes) < 1:
        raise _refused("x [..., N], no dimension of it empty", f"x {list(sizes)}")
    if order not in ORDERS:
        raise _refused(f"an order, {', '.join(ORDERS)}", repr(order))
    if weight is not None and tuple(weight) not in (sizes[-1:], sizes[-2:]):
        raise _refused(f"weight {list(sizes[-1:])} or {list(sizes[-2:])}", f"weight {list(weight)}")
    if weight is None and offset:
        raise _refused("a weight, which the offset is added to", f"the offset {offset} alone")
    if bias is not None and (not center or weight is None or tuple(bias) != tuple(weight)):
        raise _refused(
            "a bias with center, and of the weight's shape",
            f"center {center}, weight {None if weight is None else list(weight)}, bias {list(bias)}",
        )
    if dtypes is not None:
        _check_dtypes(dtypes, order)
    by_head = weight is not None and len(tuple(weight)) == 2
    return NormShape(
        tokens=math.prod(sizes[: -2 if by_head else -1]), heads=sizes[-2] if by_head else None, hidden=sizes[-1]
    )


def _check_dtypes(dtypes: tuple[str, str | None, str | None], order: str) -> None:
    x, *parameters = dtypes
    if x not in DTYPES:
        raise _refused(f"x of dtype {' or '.join(DTYPES)}", x)
    allowed = (x,) if order == "round_then_scale" else tuple(dict.fromkeys((x, "float32")))
    for name, dtype in zip(("weight", "bias"), parameters, strict=True):
        if dtype is not None and dtype not in allowed:
            raise _refused(f"a {name} of {' or '.join(allowed)} with x of {x} in the order {order}", dtype)


def used_features(
    *, weight: bool, bias: bool = False, center: bool = False, offset: float = 0.0, order: str = "round_then_scale"
) -> frozenset[str]:
    """Names of the features that a layer needs of a kernel (see FEATURES).

    Without a weight the orders are the same. `round_offset` counts as `scale_then_round`: the two differ in the
    offset alone.
    """
    present = {
        "rms_norm": not center,
        "layer_norm": center,
        "weight": weight,
        "bias": bias,
        "weight_offset": offset != 0,
        "round_then_scale": weight and order == "round_then_scale",
        "scale_then_round": weight and order != "round_then_scale",
    }
    return frozenset(name for name in FEATURES if present[name])


def _refused(needs: str, got: str) -> ValueError:
    return ValueError(explain("These arguments are no call of a norm.", needs=needs, got=got))

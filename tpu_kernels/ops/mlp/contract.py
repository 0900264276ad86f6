"""What an MLP kernel takes and gives. No torch, no jax: plain shapes and names.

    gated_mlp(x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None,
              *, activation, rounding="each", limit=None, up_offset=0.0) -> [..., O]
    mlp(x, up, down, up_bias=None, down_bias=None, *, activation, transposed=False, rounding="each") -> [..., O]

| argument | shape | meaning |
|---|---|---|
| x | [..., H] | float32 or bfloat16, any number of rows |
| gate, up | [I, H] | as the x, in the layout of `torch.nn.Linear` |
| gate without up | [2I, H] | both in one weight, the gate's rows first; its bias, if any, is [2I] |
| down | [O, I] | as the x |
| up, down of a transposed `mlp` | [H, I], [I, O] | the layout of a `Conv1D` |
| gate_bias, up_bias, down_bias | [I], [I], [O] or None | any float |
| activation | name | see ACTIVATIONS |
| rounding | name | see ROUNDINGS |
| limit | float or None | gate = min(gate, limit), up = clip(up, -limit, limit), after the bias |
| up_offset | float | added to up after that |

`gated_mlp` is (act(gate) * (up + up_offset)) @ down, `mlp` is act(up) @ down. Every product is summed in float32, has
its bias added in float32, and is rounded to the dtype of x once. Between them the order of roundings is:

* "each": the cut gate, the cut up, up + up_offset, act(gate) and the product are rounded to the dtype of x, as if
  each were an operation of its own;
* "last": everything is float32 up to the product, which is rounded.

`mlp` has one operation between its products, so both are the same there. A kernel may take tuning arguments of its
own, by keyword.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpu_kernels.errors import explain

ACTIVATIONS: Final = (
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_10",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "hardswish",
    "mish",
    "laplace",
    "sqrtsoftplus",
    "identity",
)
"""Names of activations; what they compute is in `tpu_kernels.ops.activations`."""

FEATURES: Final = (
    "gated",
    "two_layer",
    "fused_gate_up",
    "bias",
    "transposed_weights",
    "clamp",
    *ACTIVATIONS,
)
"""Names by which specs say what a kernel covers."""

DTYPES: Final = ("float32", "bfloat16")
ROUNDINGS: Final = ("each", "last")

Shape = Sequence[int]


@dataclass(frozen=True)
class MlpShape:
    """The sizes of one call."""

    lead: tuple[int, ...]
    """Dimensions of x before the last."""
    hidden: int
    """H: width of x."""
    intermediate: int
    """I: width between the products."""
    out: int
    """O: width of the result."""

    @property
    def tokens(self) -> int:
        """Rows of x."""
        return math.prod(self.lead)

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (*self.lead, self.hidden)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.lead, self.out)

    def first_shape(self, *, fused: bool = False, transposed: bool = False) -> tuple[int, int]:
        """Of gate and up, or of both in one."""
        inner = 2 * self.intermediate if fused else self.intermediate
        return (self.hidden, inner) if transposed else (inner, self.hidden)

    def down_shape(self, *, transposed: bool = False) -> tuple[int, int]:
        return (self.intermediate, self.out) if transposed else (self.out, self.intermediate)


def validate_gated(
    *,
    x: Shape,
    gate: Shape,
    up: Shape | None,
    down: Shape,
    gate_bias: Shape | None = None,
    up_bias: Shape | None = None,
    down_bias: Shape | None = None,
    dtypes: Sequence[str] | None = None,
    activation: str = "silu",
    rounding: str = "each",
    limit: float | None = None,
) -> MlpShape:
    """The sizes of a call of `gated_mlp`, from the shapes of its arguments.

    `dtypes` are the names of the dtypes of x and the weights ("bfloat16"); None leaves them unchecked.

    Raises:
        ValueError: the arguments do not fit together; the message says what was needed and what came.
    """
    call = _sizes(x, gate, down, inner_axis=0, halved=up is None)
    _same("gate", gate, call.first_shape(fused=up is None), "[2I, H]" if up is None else "[I, H]")
    if up is not None:
        _same("up", up, call.first_shape(), "[I, H]")
    _same("down", down, call.down_shape(), "[O, I]")
    inner = (call.intermediate,)
    _same_bias("gate_bias", gate_bias, (2 * call.intermediate,) if up is None else inner)
    if up is None and up_bias is not None:
        raise _refused("no up_bias where gate and up are one weight", f"up_bias {list(up_bias)}")
    _same_bias("up_bias", up_bias, inner)
    _same_bias("down_bias", down_bias, (call.out,))
    _check_options(dtypes, activation, rounding)
    if limit is not None and not limit > 0:
        raise _refused("limit None or above 0", repr(limit))
    return call


def validate_two_layer(
    *,
    x: Shape,
    up: Shape,
    down: Shape,
    up_bias: Shape | None = None,
    down_bias: Shape | None = None,
    dtypes: Sequence[str] | None = None,
    activation: str = "gelu",
    transposed: bool = False,
    rounding: str = "each",
) -> MlpShape:
    """The sizes of a call of `mlp`, from the shapes of its arguments. Arguments and errors as in `validate_gated`."""
    call = _sizes(x, up, down, inner_axis=int(transposed), halved=False)
    _same("up", up, call.first_shape(transposed=transposed), "[H, I]" if transposed else "[I, H]")
    _same("down", down, call.down_shape(transposed=transposed), "[I, O]" if transposed else "[O, I]")
    _same_bias("up_bias", up_bias, (call.intermediate,))
    _same_bias("down_bias", down_bias, (call.out,))
    _check_options(dtypes, activation, rounding)
    return call


def used_features(
    activation: str,
    *,
    gated: bool = True,
    fused: bool = False,
    bias: bool = False,
    transposed: bool = False,
    limit: float | None = None,
) -> frozenset[str]:
    """Names of the features that a layer needs of a kernel (see FEATURES)."""
    present = {
        "gated": gated,
        "two_layer": not gated,
        "fused_gate_up": fused,
        "bias": bias,
        "transposed_weights": transposed,
        "clamp": limit is not None,
        activation: True,
    }
    return frozenset(name for name in FEATURES if present.get(name, False))


def _sizes(x: Shape, first: Shape, down: Shape, *, inner_axis: int, halved: bool) -> MlpShape:
    if not x or min(x) < 1:
        raise _refused("x [..., H], no dimension of it empty", f"x {list(x)}")
    if len(first) != 2 or len(down) != 2 or min(*first, *down) < 1:
        raise _refused("weights of two dimensions, none of them empty", f"{list(first)} and {list(down)}")
    inner = first[inner_axis]
    if halved and inner % 2:
        raise _refused("a gate [2I, H] where there is no up", f"gate {list(first)}")
    return MlpShape(tuple(x[:-1]), x[-1], inner // 2 if halved else inner, down[inner_axis])


def _same(name: str, got: Shape, wanted: Shape, layout: str) -> None:
    if tuple(got) != tuple(wanted):
        raise _refused(f"{name} {layout} = {list(wanted)}", f"{name} {list(got)}")


def _same_bias(name: str, got: Shape | None, wanted: Shape) -> None:
    if got is not None and tuple(got) != tuple(wanted):
        raise _refused(f"{name} {list(wanted)}", f"{name} {list(got)}")


def _check_options(dtypes: Sequence[str] | None, activation: str, rounding: str) -> None:
    if dtypes is not None and (len(set(dtypes)) != 1 or dtypes[0] not in DTYPES):
        raise _refused(f"x and weights of one dtype, {' or '.join(DTYPES)}", ", ".join(dtypes))
    if activation not in ACTIVATIONS:
        raise _refused(f"activation one of {', '.join(ACTIVATIONS)}", repr(activation))
    if rounding not in ROUNDINGS:
        raise _refused(f"rounding one of {', '.join(ROUNDINGS)}", repr(rounding))


def _refused(needs: str, got: str) -> ValueError:
    return ValueError(explain("These arguments are no call of an MLP.", needs=needs, got=got))

"""What a kernel of experts takes and gives. No torch, no jax: plain shapes and names.

    grouped_experts(hidden, indices, weights, gate_up, down, gate_up_bias=None, down_bias=None, *, activation,
                    gated=True, transposed=False, interleaved=False, rounding="each", limit=None, up_offset=0.0)
        -> [T, H]

| argument | shape | dtype | meaning |
|---|---|---|---|
| hidden | [T, H] | float32, bfloat16 | the tokens |
| indices | [T, K] | int32, int64 | the experts of each token; an index outside of 0 to E - 1 contributes nothing |
| weights | [T, K] | as hidden, or float32 | what the contribution of each of them is multiplied by |
| gate_up | [E, 2I, H] | as hidden | the first product; [E, I, H] if not gated |
| down | [E, H, I] | as hidden | the second product |
| gate_up_bias | [E, 2I] or None | as hidden | [E, I] if not gated |
| down_bias | [E, H] or None | as hidden | |
| activation | str | | a name of `tpu_kernels.ops.activations` |
| gated | bool | | the first product has a gate and an up half |
| transposed | bool | | weights lie as [in, out]: gate_up [E, H, 2I], down [E, I, H] |
| interleaved | bool | | the halves alternate, gate0, up0, gate1, ..., and not gate first, then up |
| rounding | "each", "last" | | of the gate: each step to the dtype, or once at the end |
| limit | float or None | | gate = min(gate, limit), up = clip(up, -limit, limit) |
| up_offset | float | | what is added to up |

The order of roundings is that of `reference.experts_reference`, which is transformers' `grouped_mm`: a product is
summed in float32 and rounded to the dtype, its bias is added and the sum is rounded. A contribution is the second
product times its weight, in the wider of both dtypes. Contributions are summed in float32 and rounded once. A kernel
may take tuning arguments of its own, by keyword.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpu_kernels.errors import explain

DTYPES: Final = ("float32", "bfloat16")
ROUNDINGS: Final = ("each", "last")


@dataclass(frozen=True)
class ExpertsShape:
    """The sizes of one call."""

    tokens: int
    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    gated: bool = True
    transposed: bool = False

    @property
    def product(self) -> int:
        """Columns of the first product."""
        return 2 * self.intermediate if self.gated else self.intermediate

    @property
    def hidden_shape(self) -> tuple[int, int]:
        return (self.tokens, self.hidden)

    @property
    def routing_shape(self) -> tuple[int, int]:
        """Of indices and of weights."""
        return (self.tokens, self.top_k)

    @property
    def gate_up_shape(self) -> tuple[int, int, int]:
        inner = (self.hidden, self.product) if self.transposed else (self.product, self.hidden)
        return (self.num_experts, *inner)

    @property
    def down_shape(self) -> tuple[int, int, int]:
        inner = (self.intermediate, self.hidden) if self.transposed else (self.hidden, self.intermediate)
        return (self.num_experts, *inner)

    @property
    def gate_up_bias_shape(self) -> tuple[int, int]:
        return (self.num_experts, self.product)

    @property
    def down_bias_shape(self) -> tuple[int, int]:
        return (self.num_experts, self.hidden)

    @property
    def expert_elements(self) -> int:
        """Weights of one expert."""
        return (self.product + self.intermediate) * self.hidden


def validate_call(
    *,
    hidden: Sequence[int],
    indices: Sequence[int],
    weights: Sequence[int],
    gate_up: Sequence[int],
    down: Sequence[int],
    gate_up_bias: Sequence[int] | None = None,
    down_bias: Sequence[int] | None = None,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    rounding: str = "each",
    limit: float | None = None,
    dtypes: tuple[str, str, str] | None = None,
    indices_dtype: str = "int32",
    weights_dtype: str | None = None,
) -> ExpertsShape:
    """The sizes of a call, from the shapes of its arguments.

    `dtypes` are the names of the dtypes of hidden, gate_up and down ("bfloat16"); None leaves them unchecked.

    Raises:
        ValueError: the arguments do not fit together; the message says what was needed and what came.
    """
    given = {"hidden": (hidden, 2), "indices": (indices, 2), "gate_up": (gate_up, 3), "down": (down, 3)}
    for name, (shape, dimensions) in given.items():
        if len(shape) != dimensions or min(shape) < 1:
            raise _refused(f"{name} of {dimensions} dimensions, none of them empty", f"{name} {list(shape)}")
    call = ExpertsShape(
        tokens=hidden[0],
        hidden=hidden[1],
        intermediate=down[1 if transposed else 2],
        num_experts=gate_up[0],
        top_k=indices[1],
        gated=gated,
        transposed=transposed,
    )
    halves = "2I" if gated else "I"
    shapes: tuple[tuple[str, Sequence[int] | None, tuple[int, ...], str], ...] = (
        ("indices", indices, call.routing_shape, "[T, K]"),
        ("weights", weights, call.routing_shape, "[T, K]"),
        ("down", down, call.down_shape, "[E, I, H]" if transposed else "[E, H, I]"),
        ("gate_up", gate_up, call.gate_up_shape, f"[E, H, {halves}]" if transposed else f"[E, {halves}, H]"),
        ("gate_up_bias", gate_up_bias, call.gate_up_bias_shape, f"[E, {halves}]"),
        ("down_bias", down_bias, call.down_bias_shape, "[E, H]"),
    )
    for name, got, wanted, layout in shapes:
        if got is not None and tuple(got) != wanted:
            raise _refused(f"{name} {layout} = {list(wanted)}", f"{name} {list(got)}")
    if interleaved and not gated:
        raise _refused("gated where interleaved", "interleaved, not gated")
    if rounding not in ROUNDINGS:
        raise _refused(f"rounding {' or '.join(ROUNDINGS)}", repr(rounding))
    if limit is not None and limit <= 0:
        raise _refused("limit None or above 0", repr(limit))
    if dtypes is not None and (len(set(dtypes)) != 1 or dtypes[0] not in DTYPES):
        raise _refused(f"hidden, gate_up and down of one dtype, {' or '.join(DTYPES)}", ", ".join(dtypes))
    if indices_dtype not in ("int32", "int64"):
        raise _refused("indices of dtype int32 or int64", indices_dtype)
    if dtypes is not None and weights_dtype not in (None, dtypes[0], "float32"):
        raise _refused(f"weights of dtype {dtypes[0]} or float32", str(weights_dtype))
    return call


def used_features(
    *,
    activation: str,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    limit: float | None = None,
    bias: bool = False,
) -> frozenset[str]:
    """Names of the features that a layer needs of a kernel, as specs have them."""
    flags = {
        "gated": gated,
        "two_layer": not gated,
        "bias": bias,
        "transposed_weights": transposed,
        "interleaved": interleaved,
        "clamp": limit is not None,
    }
    return frozenset(name for name, present in flags.items() if present) | {activation}


def _refused(needs: str, got: str) -> ValueError:
    return ValueError(explain("These arguments are no call of experts.", needs=needs, got=got))

"""The torch side: one custom operator over the JAX kernel, its fake and its CPU implementation."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch

# When this package is loaded from the Hub its name is the build's unique id, so that two builds can
# live in one process. The hash of the kernel's source keeps compile caches apart, which know an
# operator by its name and never see its body.
_NAMESPACE = (__package__ or "norm").replace(".", "_")
_SOURCE_HASH = hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()[:12]

ORDERS = ("round_then_scale", "scale_then_round", "round_offset")
DTYPES = (torch.float32, torch.bfloat16)


def _fake(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    return x.new_empty(x.shape)


def _on_cpu(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
    **_: Any,
) -> torch.Tensor:
    rows = x.float()
    if center:
        rows = rows - rows.mean(-1, keepdim=True)
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    if order == "round_then_scale":
        rows = rows.to(x.dtype)
    if weight is not None:
        if order == "scale_then_round":
            weight = weight.float()
        rows = rows * (weight + offset if offset else weight)
    if bias is not None:
        rows = rows + bias
    return rows.to(x.dtype)


def _register() -> tuple[Any, str]:
    """The operator, or None and why there is none."""
    if getattr(torch, "tpu", None) is None:
        return None, "torch has no `torch.tpu`: torch_tpu is not installed, or was not loaded with torch"
    try:
        from torch.tpu.pallas import jax_op
    except ImportError as error:
        return None, f"torch.tpu.pallas cannot be imported: {error}"
    from .kernel import norm as kernel

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*jax_op is experimental.*")
        operator = jax_op(f"{_NAMESPACE}::norm_{_SOURCE_HASH}", kernel)
    operator.register_fake(_fake)
    operator.register_kernel("cpu")(_on_cpu)
    return operator, ""


_OPERATOR, _WHY_NOT = _register()


def _check(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    center: bool,
    offset: float,
    order: str,
) -> None:
    if x.dim() < 1 or 0 in x.shape or x.dtype not in DTYPES:
        raise ValueError(f"norm needs x [..., N], not empty, float32 or bfloat16; got {x.dtype} {tuple(x.shape)}")
    if order not in ORDERS:
        raise ValueError(f"norm needs an order, {', '.join(ORDERS)}; got {order!r}")
    shapes = [tuple(x.shape[-1:]), tuple(x.shape[-2:])]
    dtypes = {x.dtype} if order == "round_then_scale" else {x.dtype, torch.float32}
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        if tuple(parameter.shape) not in shapes:
            raise ValueError(
                f"norm needs a {name} of the last dimension of x {tuple(x.shape)}, or of its last two; "
                f"got {tuple(parameter.shape)}"
            )
        if parameter.dtype not in dtypes:
            raise ValueError(
                f"norm needs a {name} of {' or '.join(map(str, dtypes))} for x of {x.dtype} in the order {order}; "
                f"got {parameter.dtype}"
            )
    if weight is None and offset:
        raise ValueError(f"norm needs a weight for an offset; got the offset {offset} alone")
    if bias is not None and (not center or weight is None or weight.shape != bias.shape):
        raise ValueError(
            "norm needs center=True and a weight of the same shape for a bias; "
            f"got center={center}, weight {None if weight is None else tuple(weight.shape)}, "
            f"bias {tuple(bias.shape)}"
        )


def norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    center: bool = False,
    offset: float = 0.0,
    order: str = "round_then_scale",
    block_rows: int | None = None,
) -> torch.Tensor:
    """RMSNorm, or LayerNorm with `center`, of the rows of a tensor.

    The mean, the root and the division are float32 always. Runs on TPU tensors, eagerly or inside
    `torch.compile(backend="tpu", fullgraph=True)`, and on CPU tensors in plain torch. No gradient.

    Args:
        x: [..., N], float32 or bfloat16.
        weight: None, [N], or [heads, N] for an x [..., heads, N]; x's dtype. In the orders `scale_then_round`
            and `round_offset` it may be float32 beside an x in bfloat16.
        bias: None, or as the weight; only with `center` and a weight.
        eps: added to the mean of the squares.
        center: take the mean of each row away first, as LayerNorm does.
        offset: added to the weight.
        order: where a result in bfloat16 is rounded, with n the normalized row in float32.
            `round_then_scale`: n, then its product with (offset + weight), then the sum with the bias.
            `scale_then_round`: n * (offset + weight) + bias is float32 throughout, rounded once.
            `round_offset`: as scale_then_round, but (offset + weight) is rounded to the weight's dtype first.
        block_rows: tuning, rows of one grid step; None picks as many as fill a block of 2 MB.

    Returns:
        [..., N] in x's dtype.

    Raises:
        ValueError: shapes, dtypes or options that do not fit together.
        RuntimeError: tensors on a device for which there is no implementation here.
    """
    _check(x, weight, bias, center, offset, order)
    options = {"eps": eps, "center": center, "offset": offset, "order": order}
    if _OPERATOR is not None:
        return _OPERATOR(x, weight, bias, **options, block_rows=block_rows)
    if x.device.type == "cpu":
        return _on_cpu(x, weight, bias, **options)
    raise RuntimeError(
        f"norm has no implementation for tensors on `{x.device}` here.\n"
        "  Needs: torch_tpu and jax beside torch\n"
        f"  Got:   {_WHY_NOT}\n"
        "  Next:  install torch_tpu and jax, and let torch load its device backends "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD unset)"
    )

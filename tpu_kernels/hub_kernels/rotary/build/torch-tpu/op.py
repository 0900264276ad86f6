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
_NAMESPACE = (__package__ or "rotary").replace(".", "_")
_SOURCE_HASH = hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()[:12]

LAYOUTS = ("half", "interleaved")
ROUNDINGS = ("each", "last")
DTYPES = (torch.float32, torch.bfloat16)


def _fake(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _on_cpu(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    layout: str = "half",
    rounding: str = "each",
    **_: Any,
) -> torch.Tensor:
    rotary_dim = cos.shape[-1]
    part = x[..., :rotary_dim].float()
    # Both members of each pair, on an axis of their own.
    pairs = part.unflatten(-1, (2, -1)) if layout == "half" else part.unflatten(-1, (-1, 2))
    axis = -2 if layout == "half" else -1
    first, second = pairs.unbind(axis)
    turned = torch.stack([-second, first], axis).flatten(-2)
    products = [part * cos.unsqueeze(1).float(), turned * sin.unsqueeze(1).float()]
    if rounding == "each":
        products = [product.to(x.dtype) for product in products]
    return torch.cat([(products[0] + products[1]).to(x.dtype), x[..., rotary_dim:]], dim=-1)


def _register() -> tuple[Any, str]:
    """The operator, or None and why there is none."""
    if getattr(torch, "tpu", None) is None:
        return None, "torch has no `torch.tpu`: torch_tpu is not installed, or was not loaded with torch"
    try:
        from torch.tpu.pallas import jax_op
    except ImportError as error:
        return None, f"torch.tpu.pallas cannot be imported: {error}"
    from .kernel import rotary as kernel

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*jax_op is experimental.*")
        operator = jax_op(f"{_NAMESPACE}::rotary_{_SOURCE_HASH}", kernel)
    operator.register_fake(_fake)
    operator.register_kernel("cpu")(_on_cpu)
    return operator, ""


_OPERATOR, _WHY_NOT = _register()


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str, rounding: str) -> None:
    if x.dim() != 4 or 0 in x.shape or x.dtype not in DTYPES:
        raise ValueError(
            f"rotary needs x [B, heads, T, D], not empty, float32 or bfloat16; got {x.dtype} {tuple(x.shape)}"
        )
    batch, _, positions, width = x.shape
    if (
        cos.dim() != 3
        or cos.shape[0] not in (1, batch)
        or cos.shape[1] != positions
        or not 2 <= cos.shape[2] <= width
        or cos.shape[2] % 2
    ):
        raise ValueError(
            f"rotary needs cos [{batch} or 1, {positions}, R] for x {tuple(x.shape)}, R even and 2 to {width}; "
            f"got {tuple(cos.shape)}"
        )
    if sin.shape != cos.shape:
        raise ValueError(f"rotary needs sin of cos' shape {tuple(cos.shape)}; got {tuple(sin.shape)}")
    if cos.dtype != sin.dtype or cos.dtype not in (x.dtype, torch.float32):
        raise ValueError(
            f"rotary needs cos and sin of one dtype, {x.dtype} or torch.float32; got {cos.dtype} and {sin.dtype}"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"rotary needs a layout, {' or '.join(LAYOUTS)}; got {layout!r}")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rotary needs a rounding, {' or '.join(ROUNDINGS)}; got {rounding!r}")


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    layout: str = "half",
    rounding: str = "each",
    block_positions: int | None = None,
) -> torch.Tensor:
    """Rotary position embedding of the heads of one tensor: x * cos + turn(x) * sin.

    Runs on TPU tensors, eagerly or inside `torch.compile(backend="tpu", fullgraph=True)`, and on CPU tensors in
    plain torch. No gradient.

    Args:
        x: [B, heads, T, D], float32 or bfloat16.
        cos: [B, T, R] or [1, T, R], x's dtype or float32; R is even and not larger than D. The first R numbers of a
            head are turned, the others stay. Number i of a head meets number i of the table, in either layout.
        sin: as cos.
        layout: `half`: numbers i and i + R/2 are a pair. `interleaved`: 2i and 2i + 1. A pair (a, b) turns to (-b, a).
        rounding: `each`: both products are rounded to x's dtype, then their sum. `last`: float32, rounded once.
        block_positions: tuning, positions of one grid step; None picks as many as fill a block of 1 MB.

    Returns:
        [B, heads, T, D] in x's dtype.

    Raises:
        ValueError: shapes, dtypes or options that do not fit together.
        RuntimeError: tensors on a device for which there is no implementation here.
    """
    _check(x, cos, sin, layout, rounding)
    if _OPERATOR is not None:
        return _OPERATOR(x, cos, sin, layout=layout, rounding=rounding, block_positions=block_positions)
    if x.device.type == "cpu":
        return _on_cpu(x, cos, sin, layout=layout, rounding=rounding)
    raise RuntimeError(
        f"rotary has no implementation for tensors on `{x.device}` here.\n"
        "  Needs: torch_tpu and jax beside torch\n"
        f"  Got:   {_WHY_NOT}\n"
        "  Next:  install torch_tpu and jax, and let torch load its device backends "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD unset)"
    )

"""The torch side: one custom operator over the JAX kernel, its fake and its CPU implementation."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

# When this package is loaded from the Hub its name is the build's unique id, so that two builds can
# live in one process. The hash of the kernel's sources keeps compile caches apart, which know an
# operator by its name and never see its body.
_NAMESPACE = (__package__ or "grouped_experts").replace(".", "_")
_SOURCES = [Path(__file__).with_name(name).read_bytes() for name in ("activations.py", "blocks.py", "kernel.py")]
_SOURCE_HASH = hashlib.sha256(b"".join(_SOURCES)).hexdigest()[:12]

_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_10": lambda x: functional.gelu(x).clamp(-10.0, 10.0),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "laplace": lambda x: 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * 2.0**0.5))),
    "sqrtsoftplus": lambda x: functional.softplus(x).sqrt(),
    "identity": lambda x: x,
}


def _fake(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden.new_empty(hidden.shape)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = (x.float() @ weight.float()).to(x.dtype)
    return product if bias is None else product + bias.to(x.dtype)


def _gate(
    product: torch.Tensor,
    activation: str,
    gated: bool,
    interleaved: bool,
    rounding: str,
    limit: float | None,
    up_offset: float,
) -> torch.Tensor:
    gate, up = product.float(), None
    if gated:
        half = gate.shape[-1] // 2
        gate, up = (gate[..., ::2], gate[..., 1::2]) if interleaved else gate.split(half, dim=-1)
    if limit is not None:
        gate = gate.clamp(max=limit)
        up = None if up is None else up.clamp(-limit, limit)
    result = _ACTIVATIONS[activation](gate)
    if up is not None:
        up = up + up_offset
        if rounding == "each":
            result, up = result.to(product.dtype).float(), up.to(product.dtype).float()
        result = result * up
    return result.to(product.dtype)


def _on_cpu(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
    **_: Any,
) -> torch.Tensor:
    total = torch.zeros(hidden.shape, dtype=torch.float32)
    for expert in torch.unique(indices).tolist():
        if not 0 <= expert < gate_up.shape[0]:
            continue
        token, place = torch.where(indices == expert)
        first, second = (part[expert] if transposed else part[expert].t() for part in (gate_up, down))
        product = _linear(hidden[token], first, None if gate_up_bias is None else gate_up_bias[expert])
        product = _gate(product, activation, gated, interleaved, rounding, limit, up_offset)
        product = _linear(product, second, None if down_bias is None else down_bias[expert])
        total.index_add_(0, token, (product * weights[token, place].unsqueeze(-1)).float())
    return total.to(hidden.dtype)


def _register() -> tuple[Any, str]:
    """The operator, or None and why there is none."""
    if getattr(torch, "tpu", None) is None:
        return None, "torch has no `torch.tpu`: torch_tpu is not installed, or was not loaded with torch"
    try:
        from torch.tpu.pallas import jax_op
    except ImportError as error:
        return None, f"torch.tpu.pallas cannot be imported: {error}"
    from .kernel import experts

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*jax_op is experimental.*")
        operator = jax_op(f"{_NAMESPACE}::grouped_experts_{_SOURCE_HASH}", experts)
    operator.register_fake(_fake)
    operator.register_kernel("cpu")(_on_cpu)
    return operator, ""


_OPERATOR, _WHY_NOT = _register()


def _need(good: bool, needs: str, got: Any) -> None:
    if not good:
        raise ValueError(f"grouped_experts needs {needs}; got {got}")


def _check(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    gated: bool,
    transposed: bool,
) -> None:
    _need(hidden.dim() == 2 and hidden.numel() > 0, "hidden [T, H], not empty", tuple(hidden.shape))
    tokens, width = hidden.shape
    _need(
        indices.dim() == 2 and indices.shape[0] == tokens and indices.numel() > 0,
        f"indices [{tokens}, K]",
        tuple(indices.shape),
    )
    _need(weights.shape == indices.shape, f"weights {tuple(indices.shape)}, as indices", tuple(weights.shape))
    _need(down.dim() == 3, "down of three dimensions", tuple(down.shape))
    count, inner = down.shape[0], down.shape[1 if transposed else 2]
    product = 2 * inner if gated else inner
    shapes = {"down": (count, width, inner), "gate_up": (count, product, width)}
    if transposed:
        shapes = {name: (first, third, second) for name, (first, second, third) in shapes.items()}
    shapes |= {"gate_up_bias": (count, product), "down_bias": (count, width)}
    given = {"down": down, "gate_up": gate_up, "gate_up_bias": gate_up_bias, "down_bias": down_bias}
    for name, tensor in given.items():
        if tensor is not None:
            _need(tuple(tensor.shape) == shapes[name], f"{name} {shapes[name]}", tuple(tensor.shape))
    _need(
        hidden.dtype == gate_up.dtype == down.dtype and hidden.dtype in (torch.float32, torch.bfloat16),
        "hidden, gate_up and down of one dtype, float32 or bfloat16",
        f"{hidden.dtype}, {gate_up.dtype} and {down.dtype}",
    )
    _need(weights.dtype in (hidden.dtype, torch.float32), f"weights of {hidden.dtype} or float32", weights.dtype)
    _need(indices.dtype in (torch.int32, torch.int64), "indices of int32 or int64", indices.dtype)


def grouped_experts(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    gated: bool = True,
    transposed: bool = False,
    interleaved: bool = False,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
    tile: int | None = None,
    block_bytes: int | None = None,
    num_buffers: int | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts.

    Reads only the weights of experts that some token chose. Runs on TPU tensors, eagerly or inside
    `torch.compile(backend="tpu", fullgraph=True)`, and on CPU tensors in plain torch. No gradient.

    Args:
        hidden: [T, H], float32 or bfloat16.
        indices: int32 or int64 [T, K], the experts of each token. An index outside of 0 to E - 1 contributes nothing.
            An expert should stand at most once in a row.
        weights: [T, K], hidden's dtype or float32; what the contribution of each expert is multiplied by.
        gate_up: [E, 2I, H], or [E, H, 2I] if `transposed`; I in the place of 2I if not `gated`.
        down: [E, H, I], or [E, I, H] if `transposed`.
        gate_up_bias: [E, 2I] ([E, I] if not `gated`) or None.
        down_bias: [E, H] or None.
        activation: silu, gelu (with erf), gelu_tanh, gelu_10, quick_gelu (x * sigmoid(1.702 x)), relu, relu2, relu6,
            leaky_relu, sigmoid, tanh, hardswish, mish, laplace, sqrtsoftplus or identity.
        gated: whether the first product has a gate and an up half; the gate is act(gate) * (up + up_offset).
        transposed: whether weights lie as [in, out].
        interleaved: whether the halves alternate, gate0, up0, gate1, ..., and not gate first, then up.
        rounding: "each" rounds act(gate), up + up_offset and their product to the dtype; "last" rounds once.
        limit: None, or l in gate = min(gate, l) and up = clip(up, -l, l).
        up_offset: added to up.
        tile: None, or rows of one visit of an expert, a multiple of 16; rows are then sorted by expert.
        block_bytes, num_buffers: tuning of the copies of weights; None picks sizes that fit every TPU generation.

    Returns:
        [T, H] in hidden's dtype. Products are summed in float32, rounded, and rounded again after the bias; a
        contribution has the wider dtype of hidden and weights; contributions are summed in float32.

    Raises:
        ValueError: shapes, dtypes or names that do not fit together.
        RuntimeError: tensors on a device for which there is no implementation here.
    """
    _check(hidden, indices, weights, gate_up, down, gate_up_bias, down_bias, gated, transposed)
    _need(activation in _ACTIVATIONS, f"an activation of {', '.join(_ACTIVATIONS)}", repr(activation))
    _need(rounding in ("each", "last"), 'rounding "each" or "last"', repr(rounding))
    _need(gated or not interleaved, "gated where interleaved", "interleaved, not gated")
    _need(limit is None or limit > 0, "limit None or above 0", limit)
    _need(tile is None or (tile > 0 and tile % 16 == 0), "tile None or a positive multiple of 16", tile)
    _need(block_bytes is None or block_bytes > 0, "block_bytes None or above 0", block_bytes)
    _need(num_buffers is None or num_buffers > 1, "num_buffers None, 2 or more", num_buffers)
    tensors = (hidden, indices.to(torch.int32), weights, gate_up, down, gate_up_bias, down_bias)
    options: dict[str, Any] = {
        "activation": activation,
        "gated": gated,
        "transposed": transposed,
        "interleaved": interleaved,
        "rounding": rounding,
        "limit": limit,
        "up_offset": up_offset,
    }
    if _OPERATOR is not None:
        return _OPERATOR(*tensors, **options, tile=tile, block_bytes=block_bytes, num_buffers=num_buffers)
    if hidden.device.type == "cpu":
        return _on_cpu(*tensors, **options)
    raise RuntimeError(
        f"grouped_experts has no implementation for tensors on `{hidden.device}` here.\n"
        "  Needs: torch_tpu and jax beside torch\n"
        f"  Got:   {_WHY_NOT}\n"
        "  Next:  install torch_tpu and jax, and let torch load its device backends "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD unset)"
    )

"""The torch side: a custom operator over each JAX function, its fake and its CPU implementation."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch

from .on_cpu import ACTIVATIONS, gated_mlp_on_cpu, mlp_on_cpu

# When this package is loaded from the Hub its name is the build's unique id, so that two builds can
# live in one process. The hash of the kernel's sources keeps compile caches apart, which know an
# operator by its name and never see its body.
_NAMESPACE = (__package__ or "fused_mlp").replace(".", "_")
_SOURCES = [Path(__file__).with_name(name).read_bytes() for name in ("activations.py", "blocks.py", "kernel.py")]
_SOURCE_HASH = hashlib.sha256(b"".join(_SOURCES)).hexdigest()[:12]


def _fake_gated_mlp(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor | None, down: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], down.shape[0]))


def _fake_mlp(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, *_: Any, transposed: bool = False, **__: Any
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], down.shape[1 if transposed else 0]))


def _register() -> tuple[dict[str, Any], str]:
    """The operators by the name of their function; without any, why there are none."""
    if getattr(torch, "tpu", None) is None:
        return {}, "torch has no `torch.tpu`: torch_tpu is not installed, or was not loaded with torch"
    try:
        from torch.tpu.pallas import jax_op
    except ImportError as error:
        return {}, f"torch.tpu.pallas cannot be imported: {error}"
    from . import kernel

    operators = {}
    for function, fake, on_cpu in (
        (kernel.gated_mlp, _fake_gated_mlp, gated_mlp_on_cpu),
        (kernel.mlp, _fake_mlp, mlp_on_cpu),
    ):
        name = function.__name__
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*jax_op is experimental.*")
            operators[name] = jax_op(f"{_NAMESPACE}::{name}_{_SOURCE_HASH}", function)
        operators[name].register_fake(fake)
        operators[name].register_kernel("cpu")(on_cpu)
    return operators, ""


_OPERATORS, _WHY_NOT = _register()


def _run(name: str, on_cpu: Any, x: torch.Tensor, *tensors: torch.Tensor | None, **keywords: Any) -> torch.Tensor:
    if name in _OPERATORS:
        return _OPERATORS[name](x, *tensors, **keywords)
    if x.device.type == "cpu":
        return on_cpu(x, *tensors, **keywords)
    raise RuntimeError(
        f"{name} has no implementation for tensors on `{x.device}` here.\n"
        "  Needs: torch_tpu and jax beside torch\n"
        f"  Got:   {_WHY_NOT}\n"
        "  Next:  install torch_tpu and jax, and let torch load its device backends "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD unset)"
    )


def _check_names(name: str, activation: str, rounding: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"{name} needs an activation of {', '.join(ACTIVATIONS)}; got {activation!r}")
    if rounding not in ("each", "last"):
        raise ValueError(f"{name} needs rounding 'each' or 'last'; got {rounding!r}")


def _check_weight(name: str, label: str, x: torch.Tensor, weight: torch.Tensor, wanted: list[Any], shape: str) -> None:
    if list(weight.shape) != wanted:
        raise ValueError(
            f"{name} needs {label} {shape} = {wanted} for x of shape {tuple(x.shape)}; got {tuple(weight.shape)}"
        )
    if weight.dtype != x.dtype or x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"{name} needs x and weights of one dtype, float32 or bfloat16; got x {x.dtype} and {label} {weight.dtype}"
        )


def _check_bias(name: str, label: str, bias: torch.Tensor | None, width: int) -> None:
    if bias is not None and tuple(bias.shape) != (width,):
        raise ValueError(f"{name} needs {label} of shape [{width}] or None; got {tuple(bias.shape)}")


def gated_mlp(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    down: torch.Tensor,
    gate_bias: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    rounding: str = "each",
    limit: float | None = None,
    up_offset: float = 0.0,
    block_rows: int | None = None,
    block_i: int | None = None,
) -> torch.Tensor:
    """(act(x @ gate.T) * (x @ up.T)) @ down.T, each product with its bias.

    Runs on TPU tensors, eagerly or inside `torch.compile(backend="tpu", fullgraph=True)`, and on CPU tensors in plain
    torch. No gradient.

    Args:
        x: [..., H], float32 or bfloat16; any number of rows but none.
        gate: [I, H], same dtype; or, with `up` None, the fused [2I, H] with the gate's rows first.
        up: [I, H], same dtype, or None.
        down: [O, I], same dtype.
        gate_bias: [I], or [2I] for a fused gate; or None.
        up_bias: [I] or None; None for a fused gate.
        down_bias: [O] or None.
        activation: silu, gelu (erf), gelu_tanh, gelu_10, quick_gelu, relu, relu2, relu6, leaky_relu, sigmoid, tanh,
            hardswish, mish, laplace, sqrtsoftplus or identity; computed in float32.
        rounding: the products with their bias are summed in float32 and rounded to x's dtype. Between them "each"
            rounds after every operation, "last" rounds the intermediate values alone.
        limit: None, or a positive c: gate = min(gate, c), up = clip(up, -c, c), after the bias.
        up_offset: added to up after that.
        block_rows, block_i: tuning, rows and intermediate positions of a step; None picks sizes that fit every TPU
            generation.

    Returns:
        [..., O] in x's dtype.

    Raises:
        ValueError: shapes, dtypes or names that do not fit.
        RuntimeError: tensors on a device for which there is no implementation here.
    """
    _check_names("gated_mlp", activation, rounding)
    fused = up is None
    if x.dim() < 1 or x.numel() == 0 or gate.dim() != 2 or down.dim() != 2 or (fused and gate.shape[0] % 2):
        raise ValueError(
            "gated_mlp needs x [..., H] with a row at least, gate [I, H] ([2I, H] without up) and down [O, I]; "
            f"got {tuple(x.shape)}, {tuple(gate.shape)} and {tuple(down.shape)}"
        )
    hidden, inner = x.shape[-1], gate.shape[0] // 2 if fused else gate.shape[0]
    _check_weight("gated_mlp", "gate", x, gate, [gate.shape[0], hidden], "[2I, H]" if fused else "[I, H]")
    if up is not None:
        _check_weight("gated_mlp", "up", x, up, [inner, hidden], "[I, H]")
    _check_weight("gated_mlp", "down", x, down, [down.shape[0], inner], "[O, I]")
    _check_bias("gated_mlp", "gate_bias", gate_bias, gate.shape[0])
    if fused and up_bias is not None:
        raise ValueError(f"gated_mlp needs no up_bias where up is None; got {tuple(up_bias.shape)}")
    _check_bias("gated_mlp", "up_bias", up_bias, inner)
    _check_bias("gated_mlp", "down_bias", down_bias, down.shape[0])
    if limit is not None and not limit > 0:
        raise ValueError(f"gated_mlp needs a limit above 0 or None; got {limit}")
    keywords = {"activation": activation, "rounding": rounding, "limit": limit, "up_offset": up_offset}
    tuning = {"block_rows": block_rows, "block_i": block_i}
    tensors = (gate, up, down, gate_bias, up_bias, down_bias)
    return _run("gated_mlp", gated_mlp_on_cpu, x, *tensors, **keywords, **tuning)


def mlp(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    activation: str,
    transposed: bool = False,
    rounding: str = "each",
    block_rows: int | None = None,
    block_i: int | None = None,
) -> torch.Tensor:
    """act(x @ up.T) @ down.T, each product with its bias.

    Args:
        x: [..., H], float32 or bfloat16; any number of rows but none.
        up: [I, H], same dtype; [H, I] if `transposed`.
        down: [O, I], same dtype; [I, O] if `transposed`.
        up_bias, down_bias: [I] and [O], or None.
        transposed: whether the weights have the layout of a Conv1D and not of `torch.nn.Linear`.
        rounding: there is one operation between the products, so "each" and "last" are the same here.
        activation, block_rows, block_i: as in `gated_mlp`, and so are the devices, dtypes and errors.

    Returns:
        [..., O] in x's dtype.
    """
    _check_names("mlp", activation, rounding)
    if x.dim() < 1 or x.numel() == 0 or up.dim() != 2 or down.dim() != 2:
        raise ValueError(
            "mlp needs x [..., H] with a row at least and weights of two dimensions; "
            f"got {tuple(x.shape)}, {tuple(up.shape)} and {tuple(down.shape)}"
        )
    axis = 1 if transposed else 0
    hidden, inner, out = x.shape[-1], up.shape[axis], down.shape[axis]
    _check_weight(
        "mlp", "up", x, up, [hidden, inner] if transposed else [inner, hidden], "[H, I]" if axis else "[I, H]"
    )
    _check_weight("mlp", "down", x, down, [inner, out] if transposed else [out, inner], "[I, O]" if axis else "[O, I]")
    _check_bias("mlp", "up_bias", up_bias, inner)
    _check_bias("mlp", "down_bias", down_bias, out)
    keywords = {"activation": activation, "transposed": transposed, "rounding": rounding}
    tuning = {"block_rows": block_rows, "block_i": block_i}
    return _run("mlp", mlp_on_cpu, x, up, down, up_bias, down_bias, **keywords, **tuning)

"""The activations between the products of an MLP or of experts, in plain torch.

Every function is elementwise and works on any float dtype. Kernels compute them in float32 and round once; a
reference does the same by handing them float32. The names are those of specs and kernels; transformers has several
names for some of them (`gelu_pytorch_tanh`, `gelu_new`, `gelu_fast` and `gelu_accurate` are `gelu_tanh`, `swish` is
`silu`, `linear` is `identity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from torch import Tensor
from torch.nn import functional


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _clipped_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x).clamp(-10.0, 10.0)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


def _squared_relu(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _laplace(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + ((x - 0.707107) / (0.282095 * math.sqrt(2.0))).erf())


def _sqrt_softplus(x: Tensor) -> Tensor:
    return functional.softplus(x).sqrt()


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_10": _clipped_gelu,
    "quick_gelu": _quick_gelu,
    "relu": functional.relu,
    "relu2": _squared_relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "sigmoid": Tensor.sigmoid,
    "tanh": Tensor.tanh,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "laplace": _laplace,
    "sqrtsoftplus": _sqrt_softplus,
    "identity": _identity,
}
"""`gelu` is the one with erf; `leaky_relu` has a slope of 0.01; `relu2` is relu squared."""

"""What the kernel is measured against: transformers' own two ways to run experts, as functions of tensors.

Both take the arguments and keywords of `experts_reference` and call transformers' functions with a stand-in for the
module. `fullgraph` compilation takes them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.moe import batched_mm_experts_forward, grouped_mm_experts_forward

from tpu_kernels.ops.experts.reference import gate


def batched_mm(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor:
    """transformers' `batched_mm`: each token's expert weights are gathered, then one batched product."""
    return _run(batched_mm_experts_forward, hidden, indices, weights, gate_up, down, gate_up_bias, down_bias, keywords)


def grouped_mm(
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor:
    """transformers' `grouped_mm`: rows sorted by expert, then one grouped product (XLA's ragged dot on a TPU)."""
    return _run(grouped_mm_experts_forward, hidden, indices, weights, gate_up, down, gate_up_bias, down_bias, keywords)


class _Experts:
    """What transformers' functions read of an experts module."""

    has_post_expert_norm = False
    _is_expert_parallel = False

    def __init__(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        gate_up_bias: torch.Tensor | None,
        down_bias: torch.Tensor | None,
        keywords: dict[str, Any],
    ) -> None:
        options = {"gated": True, "transposed": False, **keywords}
        self.num_experts = gate_up.shape[0]
        self.has_gate = options["gated"]
        self.has_bias = gate_up_bias is not None
        self.is_transposed = options.pop("transposed")
        self.gate_up_proj = self.up_proj = gate_up
        self.gate_up_proj_bias = self.up_proj_bias = gate_up_bias
        self.down_proj, self.down_proj_bias = down, down_bias
        self.options = options

    def _apply_gate(self, product: torch.Tensor) -> torch.Tensor:
        return gate(product, **self.options)

    act_fn = _apply_gate


def _run(
    forward: Callable[..., torch.Tensor],
    hidden: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    keywords: dict[str, Any],
) -> torch.Tensor:
    return forward(_Experts(gate_up, down, gate_up_bias, down_bias, keywords), hidden, indices, weights)

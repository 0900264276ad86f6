"""Random weights under which no feature of a model is idle."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def _is_norm(module: torch.nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


@torch.no_grad()
def biting_weights_(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Fill `model` with random weights, in place, and return it.

    Norm weights vary by 0.3 around what a fresh norm holds (1, or 0 where the class adds the 1), biases and sinks by
    0.3, embeddings by 0.06, every other matrix by 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if _is_norm(module) and name == "weight":
                parameter.copy_(parameter.float().mean().round() + 0.3 * noise)
            elif isinstance(module, torch.nn.Embedding):
                parameter.copy_(0.06 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(0.2 * noise)
    return model

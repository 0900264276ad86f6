"""The MLP of a transformer layer for TPUs, with a gate and without."""

from .op import gated_mlp, mlp

__all__ = ["gated_mlp", "mlp"]

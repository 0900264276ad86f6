"""RMSNorm and LayerNorm of rows for TPUs, in each order of roundings that models use: one function."""

from .op import norm

__all__ = ["norm"]

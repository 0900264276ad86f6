"""The experts of a mixture for TPUs: both products, the gate and the weighted sum, one function."""

from .op import grouped_experts

__all__ = ["grouped_experts"]

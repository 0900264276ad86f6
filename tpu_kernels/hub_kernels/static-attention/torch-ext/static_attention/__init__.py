"""Attention over a static key/value cache for TPUs: prefill chunks and decode steps, one function."""

from .op import static_attention

__all__ = ["static_attention"]

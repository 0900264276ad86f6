"""Rotary position embedding for TPUs: halves or pairs, all of a head or its first part, either rounding."""

from .op import rotary

__all__ = ["rotary"]

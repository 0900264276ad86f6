"""What every op's named cases have in common, so that one lab, one suite runner and one tuner serve all ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Argument = tuple[tuple[int, ...], str] | None
"""Shape and dtype of an array, or None for an argument that is left out."""


class OpCase(Protocol):
    """One named call of an op, with the sizes of a real model."""

    @property
    def name(self) -> str:
        """`MODEL/PHASE`, with `decode` or `prefill` for the phase."""

    @property
    def model(self) -> str:
        """Hub id of the model whose config.json has these figures."""

    @property
    def function(self) -> str:
        """The JAX function of the kernel's `kernel.py` that takes the call."""

    @property
    def reference(self) -> str:
        """`module:function` of the plain torch reference; it takes the same arguments and keywords."""

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword arguments of the call, tuning apart."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the call for people and for JSON: tokens, hidden, …"""

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        """Shape and dtype of each positional argument of the call, floats in `dtype`."""

    def steering(self) -> Mapping[int, Any]:
        """Contents, as nested lists, of the arguments by which a kernel decides what it reads; by position."""

    def needed_bytes(self, dtype: str) -> int:
        """Bytes that any implementation must move from and to HBM."""

    def needed_flops(self) -> int:
        """Floating-point operations of the matrix products that any implementation must compute."""

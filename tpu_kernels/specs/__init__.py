"""Kernel specs: which Hub kernel replaces which layer, as data. One YAML file per kernel."""

from __future__ import annotations

from tpu_kernels.specs.load import load_spec, parse_spec
from tpu_kernels.specs.parts import BundledSource, Dimension, HubSource, Match, PathSource, Requires
from tpu_kernels.specs.schema import KernelSpec

__all__ = [
    "BundledSource",
    "Dimension",
    "HubSource",
    "KernelSpec",
    "Match",
    "PathSource",
    "Requires",
    "load_spec",
    "parse_spec",
]

"""The index of all kernel specs that this process knows."""

from __future__ import annotations

from tpu_kernels.registry.bundled import bundled_specs_folder
from tpu_kernels.registry.index import Registry, find_spec, load_registry

__all__ = ["Registry", "bundled_specs_folder", "find_spec", "load_registry"]

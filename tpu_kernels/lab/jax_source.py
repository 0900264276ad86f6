"""Loads the JAX file of a Hub kernel by itself: without torch, without `kernels`, without its package."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from tpu_kernels.errors import KernelLoadError, explain

HUB_KERNELS: Final = Path(__file__).parents[1] / "hub_kernels"
STATIC_ATTENTION: Final = HUB_KERNELS / "static-attention" / "torch-ext" / "static_attention" / "kernel.py"


def load_source(path: Path) -> ModuleType:
    """The module of the file at `path`, loaded anew. KernelLoadError if there is no such file."""
    if not path.is_file():
        raise KernelLoadError(explain("There is no kernel source to load.", needs="a Python file", got=str(path)))
    name = f"_kernel_source_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KernelLoadError(explain("This file is no Python module.", got=str(path)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

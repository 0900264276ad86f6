"""Loads the JAX files of a Hub kernel by themselves: without torch, without `kernels`."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from tpu_kernels.errors import KernelLoadError, explain

HUB_KERNELS: Final = Path(__file__).parents[1] / "hub_kernels"
STATIC_ATTENTION: Final = HUB_KERNELS / "static-attention" / "torch-ext" / "static_attention" / "kernel.py"

_NUMBERS = itertools.count()


def load_source(path: Path) -> ModuleType:
    """The module of the file at `path`, loaded anew; it may import its neighbours relatively.

    The `__init__.py` beside it, which needs torch, is not run. KernelLoadError if there is no such file.
    """
    if not path.is_file():
        raise KernelLoadError(explain("There is no kernel source to load.", needs="a Python file", got=str(path)))
    package = ModuleType(f"_kernel_source_{next(_NUMBERS)}")
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    importlib.invalidate_caches()
    return importlib.import_module(f"{package.__name__}.{path.stem}")

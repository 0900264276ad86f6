"""Hub kernels for transformers models on Google TPUs.

>>> from tpu_kernels import enable_tpu_kernels            # doctest: +SKIP
>>> report = enable_tpu_kernels(model)                    # doctest: +SKIP

Importing this package loads neither torch nor jax; a public name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tpu_kernels import _logging
from tpu_kernels._version import __version__
from tpu_kernels.errors import (
    CacheTooLargeError,
    CacheTooSmallError,
    CompileError,
    DuplicateSpecError,
    EmulatorError,
    KernelFailedError,
    KernelLoadError,
    KernelRejectedError,
    LaunchError,
    ModelNotOnTpuError,
    ModelStructureError,
    NoMatchError,
    RanksDisagreeError,
    SpecError,
    StackError,
    TensorParallelError,
    TpuKernelsError,
)

if TYPE_CHECKING:
    from tpu_kernels.apply import disable_tpu_kernels, enable_tpu_kernels, tp_config
    from tpu_kernels.plan import plan_tensor_parallel, plan_tpu_kernels
    from tpu_kernels.registry import Registry, load_registry
    from tpu_kernels.specs import KernelSpec, load_spec

__all__ = [
    "CacheTooLargeError",
    "CacheTooSmallError",
    "CompileError",
    "DuplicateSpecError",
    "EmulatorError",
    "KernelFailedError",
    "KernelLoadError",
    "KernelRejectedError",
    "KernelSpec",
    "LaunchError",
    "ModelNotOnTpuError",
    "ModelStructureError",
    "NoMatchError",
    "RanksDisagreeError",
    "Registry",
    "SpecError",
    "StackError",
    "TensorParallelError",
    "TpuKernelsError",
    "__version__",
    "disable_tpu_kernels",
    "enable_tpu_kernels",
    "load_registry",
    "load_spec",
    "plan_tensor_parallel",
    "plan_tpu_kernels",
    "tp_config",
]

_LAZY = {
    "disable_tpu_kernels": "tpu_kernels.apply",
    "enable_tpu_kernels": "tpu_kernels.apply",
    "plan_tensor_parallel": "tpu_kernels.plan",
    "plan_tpu_kernels": "tpu_kernels.plan",
    "tp_config": "tpu_kernels.apply",
    "Registry": "tpu_kernels.registry",
    "load_registry": "tpu_kernels.registry",
    "KernelSpec": "tpu_kernels.specs",
    "load_spec": "tpu_kernels.specs",
}

_logging.configure()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""`tpu-kernels demo`: the bundled model on the TPU, or on the emulated one, plain and with tpu-kernels.

`demo_model_path()` is the folder of the bundled model; `run_demo()` runs the demonstration in a process of
its own. Importing this package loads neither torch nor jax.
"""

from __future__ import annotations

from tpu_kernels.demo.assets import demo_model_path
from tpu_kernels.demo.run import run_demo

__all__ = ["demo_model_path", "run_demo"]

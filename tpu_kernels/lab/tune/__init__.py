"""Finds block sizes for a kernel on each TPU generation, and writes them into its spec.

tuned = tune(spec, ["v6e"], cases)
write_tuning(path, tuned.mapping())
"""

from tpu_kernels.lab.tune.search import Tuned, Tuning, tune
from tpu_kernels.lab.tune.yaml_edit import write_tuning

__all__ = ["Tuned", "Tuning", "tune", "write_tuning"]

"""Finds block sizes for a kernel on each TPU generation, and writes them into its spec.

subjects = calls(spec, cases=[])
(tuned,) = tune(spec, ["v6e"], subjects, candidates=spec_candidates(spec))
write_tuning(path, {"v6e": dict(tuned.best)})
"""

from tpu_kernels.lab.tune.candidates import Tuning, spec_candidates
from tpu_kernels.lab.tune.search import Tuned, tune
from tpu_kernels.lab.tune.yaml_edit import write_tuning

__all__ = ["Tuned", "Tuning", "spec_candidates", "tune", "write_tuning"]

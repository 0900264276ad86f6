"""Applying a plan to a model, and taking it back."""

from tpu_kernels.apply.enable import disable_tpu_kernels, enable_tpu_kernels
from tpu_kernels.apply.report import CallEntry, EnableReport, ReportEntry
from tpu_kernels.apply.tensor_parallel import tp_config

__all__ = ["CallEntry", "EnableReport", "ReportEntry", "disable_tpu_kernels", "enable_tpu_kernels", "tp_config"]

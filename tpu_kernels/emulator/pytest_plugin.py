"""A pytest plugin that runs a test suite on the emulated TPU: `pytest -p tpu_kernels.emulator.pytest_plugin`.

pytest loads a plugin named with `-p` before any conftest.py and before installed plugins, so torch
is not imported yet. The option must stand on the command line or in `addopts`.
"""

from __future__ import annotations

import pytest

from tpu_kernels import emulator
from tpu_kernels.errors import EmulatorError

try:
    emulator.start()
except EmulatorError as error:
    raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    return "tpu: emulated (torch_tpu on XLA's CPU plugin)"

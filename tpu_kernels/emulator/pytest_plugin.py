"""A pytest plugin that runs a test suite on the emulated TPU: `pytest -p tpu_kernels.emulator.pytest_plugin`.

pytest loads a plugin named with `-p` before any conftest.py and before installed plugins, so torch
is not imported yet. The option must stand on the command line or in `addopts`.

torch.compile forgets what it compiled between one test file and the next: transformers compiles one
function for all models, and after eight models torch would run it eagerly, with only a log line.
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


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        import torch

        torch.compiler.reset()

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_kernels import _logging

ROOT = Path(__file__).parents[1]
LOG_ALL = (
    "import logging, tpu_kernels\n"
    "logger = logging.getLogger('tpu_kernels.some.part')\n"
    "[getattr(logger, level)(level + ' told') for level in ('debug', 'info', 'warning', 'error')]"
)


def stderr_of(code: str, verbosity: str | None) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TPU_KERNELS_VERBOSITY"}
    if verbosity is not None:
        environment["TPU_KERNELS_VERBOSITY"] = verbosity
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


@pytest.mark.parametrize(
    ("verbosity", "told"),
    [
        (None, ["warning", "error"]),
        ("", ["warning", "error"]),
        ("debug", ["debug", "info", "warning", "error"]),
        ("INFO", ["info", "warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_environment_sets_what_is_told(verbosity: str | None, told: list[str]) -> None:
    assert stderr_of(LOG_ALL, verbosity).splitlines() == [f"tpu_kernels: {level}: {level} told" for level in told]


def test_an_unknown_level_is_told() -> None:
    assert "TPU_KERNELS_VERBOSITY=loud is unknown; use one of debug" in stderr_of("import tpu_kernels", "loud")


def test_a_program_that_sets_up_logging_gets_each_record_once() -> None:
    code = "import logging; logging.basicConfig(format='mine: %(message)s')\n" + LOG_ALL
    assert stderr_of(code, None).splitlines() == ["mine: warning told", "mine: error told"]


def test_configuring_again_adds_no_second_handler() -> None:
    before = list(_logging.logger.handlers)
    _logging.configure()
    assert _logging.logger.handlers == before
    assert logging.getLogger("tpu_kernels") is _logging.logger

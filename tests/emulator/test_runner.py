"""`python -m tpu_kernels.emulator SCRIPT` behaves as `python SCRIPT` does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.emulator.processes import python
from tpu_kernels.emulator.runner import main, run_script

RUN = ("-m", "tpu_kernels.emulator")


def _script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_script_is_main_and_has_the_device(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'beside the script'\n")
    script = _script(
        tmp_path,
        "import json, sys, neighbour, torch\n"
        "from tpu_kernels import emulator\n"
        "value = (torch.arange(3).to('tpu') + 1).cpu().tolist()\n"
        "print(json.dumps([__name__, sys.argv, neighbour.WORD, emulator.is_active(), value]))\n",
    )
    process = python(*RUN, script, "one", "--two")
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == [
        "__main__",
        [script, "one", "--two"],
        "beside the script",
        True,
        [1, 2, 3],
    ]
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("ending", "code", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no good')", 1, "no good\n"),
    ],
)
def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, code: int, stderr: str) -> None:
    assert main([_script(tmp_path, ending)]) == code
    assert capsys.readouterr().err == stderr


def test_arguments_and_path_are_put_back(tmp_path: Path) -> None:
    before = (list(sys.argv), list(sys.path))
    assert run_script(_script(tmp_path, "import sys; assert sys.argv[1:] == ['--force']"), ["--force"]) == 0
    assert (sys.argv, sys.path) == before


def test_uncaught_exception_shows_the_script_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_script(tmp_path, "def f():\n    raise ValueError('wrong')\nf()\n")]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith('Traceback (most recent call last):\n  File "' + str(tmp_path))
    assert stderr.endswith("ValueError: wrong\n")


def test_missing_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no/such/script.py"]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("There is no script 'no/such/script.py' to run on the emulated TPU.\n")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    usage = "usage: python -m tpu_kernels.emulator [--force] [-m] SCRIPT [ARGS...]\n"
    assert main([]) == 2
    assert capsys.readouterr() == ("", usage)
    assert main(["--help"]) == 0
    assert capsys.readouterr() == (usage, "")


def test_environment_of_the_script(tmp_path: Path) -> None:
    """Child processes inherit nothing of the emulator; the on-disk compile cache is fresh and removed."""
    script = _script(
        tmp_path,
        "import os, torch\n"
        "torch.compile(lambda x: x + 1, backend='tpu')(torch.ones(2).to('tpu')).cpu()\n"
        "names = ('TPU_LIBRARY_PATH', 'JAX_PLATFORMS', 'TORCH_DEVICE_BACKEND_AUTOLOAD', 'TPU_SKIP_MDS_QUERY')\n"
        "folder = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "print([name for name in names if name in os.environ], os.path.isdir(folder), folder)\n",
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    process = python(*RUN, script, environment=environment)
    inherited, exists, folder = process.stdout.split()
    assert (inherited, exists) == ("[]", "True"), process.stderr
    assert folder != os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert not Path(folder).exists()


def test_importing_the_emulator_is_cheap() -> None:
    code = (
        "import sys\n"
        "from tpu_kernels import emulator\n"
        "print(emulator.is_active(), emulator.compilations(), emulator.executions(), emulator.transferred())\n"
        "print(sorted({'torch', 'jax', 'torch_tpu', 'numpy', 'pypjrt'} & set(sys.modules)))\n"
    )
    process = python("-c", code)
    assert process.stdout == "False 0 0 0\n[]\n", process.stderr

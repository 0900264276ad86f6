"""`pytest -p tpu_kernels.emulator.pytest_plugin` in a suite of somebody else's."""

from __future__ import annotations

from pathlib import Path

from tests.emulator.processes import ROOT, python

SUITE = {
    "conftest.py": "import torch\n",
    "shared.py": (
        "import torch\n"
        "from torch._dynamo.utils import counters\n"
        "increment = torch.compile(lambda x: x + 1, backend='tpu')\n"
        "def graphs_compiled_for(size):\n"
        "    before = counters['stats']['unique_graphs']\n"
        "    assert increment(torch.ones(size).to('tpu')).cpu().tolist() == [2.0] * size\n"
        "    return counters['stats']['unique_graphs'] - before\n"
    ),
    "test_first.py": (
        "from shared import graphs_compiled_for\n"
        "from tpu_kernels import emulator\n"
        "def test_until_torch_compile_gives_up():\n"
        "    assert emulator.is_active()\n"
        "    assert [graphs_compiled_for(size) for size in range(2, 12)] == [1] * 8 + [0] * 2\n"
    ),
    "test_second.py": (
        "from shared import graphs_compiled_for\n"
        "def test_compiles_again_in_the_next_file():\n"
        "    assert graphs_compiled_for(20) == 1\n"
    ),
}


def test_suite_with_a_conftest_that_imports_torch(tmp_path: Path) -> None:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    arguments = ("-m", "pytest", "-p", "tpu_kernels.emulator.pytest_plugin", f"--rootdir={tmp_path}")
    process = python(*arguments, "-c", "/dev/null", str(tmp_path), PYTHONPATH=str(ROOT))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "tpu: emulated (torch_tpu on XLA's CPU plugin)" in process.stdout
    assert "2 passed" in process.stdout

"""Functions of torch that read a number from the device while they hold the interpreter's lock: no deadlock."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.emulator.processes import python

SCRIPT = """
import torch

x = torch.arange(12.0).reshape(3, 4).to("tpu")
one = torch.ones(5, 5).to("tpu").sum().long() - 24  # not compiled yet when it is read
print(x[one, 2].item())
two = torch.ones(6, 7).to("tpu").sum().long() - 40
x[two, 0] = 99
print(x[2].tolist())
three = torch.ones(2, 7).to("tpu").sum() - 11
print(torch.full((2,), three).tolist(), torch.clamp(x, max=three + 0)[1].tolist())
four = torch.ones(8, 7).to("tpu").sum().long() - 52
print(torch.arange(four).tolist(), x.reshape(-1)[: four].tolist())
half = torch.ones(3, 3).to("tpu").bfloat16().sum() / 18
print(half.item(), bool(half > 0), int(one), float(half), (one > 7).item())
"""


def test_numbers_of_the_device_in_indices_and_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python("-m", "tpu_kernels.emulator", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "6.0",
        "[99.0, 9.0, 10.0, 11.0]",
        "[3.0, 3.0] [3.0, 3.0, 3.0, 3.0]",
        "[0, 1, 2, 3] [0.0, 1.0, 2.0, 3.0]",
        "0.5 True 1 0.5 False",
    ]


def test_numbers_read_inside_a_compiled_graph() -> None:
    x = torch.tensor([1.0, 2.0]).to("tpu")
    one = torch.tensor(1).to("tpu")
    assert torch.compile(lambda t: t * t.sum().item(), backend="tpu")(x).tolist() == [3.0, 6.0]
    assert torch.compile(lambda t: t * int(t.sum().long().item()), backend="tpu")(x).tolist() == [3.0, 6.0]
    assert torch.compile(lambda t, i: t[i], backend="tpu")(x, one).item() == 2.0

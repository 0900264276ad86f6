"""Ranks on emulated chips: by `tpu-kernels launch --emulate`, and by a launcher as in transformers' documentation."""

from __future__ import annotations

import json
from pathlib import Path

from tests.emulator.processes import python
from tests.launch.launches import script

MAIN = ("-c", "from tpu_kernels.cli.main import main; main()")

# Adds over the ranks on the device; then rank 1 fails while rank 0 waits for it in a collective.
SUMS = """
import json, os, sys, torch
import torch.distributed as dist
from tpu_kernels import emulator
dist.init_process_group("tpu_dist")
rank = dist.get_rank()
value = torch.full((2,), rank + 1.0, device="tpu")
dist.all_reduce(value)
slice = sorted(name for name in os.environ if name.startswith("TORCH_TPU_"))
answer = [rank, dist.get_world_size(), emulator.is_active(), value.tolist(), slice, sys.argv[1:]]
print(json.dumps(answer) + "\\n", end="")
dist.barrier()
if rank == 1:
    raise ValueError("wrong")
dist.all_reduce(value)
value.cpu()
"""

LAUNCHER = """
import sys
from torch.distributed.run import main
from torch.tpu import distributed

if __name__ == "__main__":
    distributed.set_tpu_launch_env(nproc_per_node=2)
    main(["--nproc-per-node", "2", *sys.argv[1:]])
"""


def answers(stdout: str) -> list[object]:
    return sorted(json.loads(line) for line in stdout.splitlines())


def test_two_emulated_chips(tmp_path: Path) -> None:
    """Variables of a real slice do not reach them, and a rank that fails ends the other."""
    file = script(tmp_path, SUMS)
    process = python(
        *(*MAIN, "launch", "--emulate", "--nproc", "2", file, "x"),
        timeout=300,
        TORCH_TPU_TOPOLOGY="2,2,1",
        TORCH_TPU_SLICEBUILDER_ADDRESSES="a:1",
    )
    assert answers(process.stdout) == [[rank, 2, True, [3.0, 3.0], [], ["x"]] for rank in (0, 1)], process.stderr
    assert process.returncode == 1
    assert process.stderr.count("Traceback (most recent call last)") == 1
    assert "[rank1]: ValueError: wrong\n" in process.stderr
    assert "error: rank 1 of 2 (process " in process.stderr


def test_a_launcher_of_ones_own_starts_emulated_ranks(tmp_path: Path) -> None:
    """With torchrun itself: the rank that failed must not wait for the others at its exit, as torch_tpu would."""
    file = script(tmp_path, SUMS)
    process = python(
        "-m", "tpu_kernels.emulator", script(tmp_path, LAUNCHER, "launch.py"), file, "x", timeout=300, PYTHONPATH="."
    )
    assert answers(process.stdout) == [[rank, 2, True, [3.0, 3.0], [], ["x"]] for rank in (0, 1)], process.stderr
    assert process.returncode == 1
    assert "ValueError: wrong\n" in process.stderr
    assert "ChildFailedError" in process.stderr

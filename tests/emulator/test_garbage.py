"""Cyclic garbage that holds tensors of the TPU does not end the process while something compiles."""

from __future__ import annotations

from pathlib import Path

from tests.emulator.processes import python

SCRIPT = """
import gc
import time

import torch

class Node:
    freed = 0

    def __del__(self):
        Node.freed += 1

gc.collect()
gc.set_threshold(20)
for size in range(3, 40):
    for _ in range(20):
        node = Node()
        node.itself, node.tensor = node, torch.ones(4).to("tpu") + 1
    (torch.ones(size, size + 1).to("tpu") @ torch.ones(size + 1, size).to("tpu")).sum().item()
freed = Node.freed
end = time.monotonic() + 20
while Node.freed == freed and time.monotonic() < end:
    time.sleep(0.05)  # nobody collects by hand: the collector looks by itself
print("freed", Node.freed > 100, gc.isenabled())
"""


def test_garbage_with_tensors_in_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python("-m", "tpu_kernels.emulator", str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["freed", "True", "False"]

"""torch_tpu 0.2.0: a tensor made on the CPU inside a compiled function ends the process.

On a machine with a TPU run it as it is; elsewhere run it as `python -m tpu_kernels.emulator`. Both
abort with "compiled_mode.cc ... identified an argument that was not provided". The stack that torch_tpu
prints ends in its own TraverseAndCompile: nothing has reached PJRT, behind which the emulator lives.
"""

from __future__ import annotations

import sys

import torch

if "tpu_kernels" in sys.modules:
    # The emulator turns this fault into an error; show torch_tpu as it came.
    from tpu_kernels.emulator import guards

    guards.remove()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(3.0).to(x.device)


print("compiling", flush=True)
torch.compile(scaled, backend="tpu")(torch.ones(3).to("tpu"))
print("compiled: torch_tpu no longer has this fault")

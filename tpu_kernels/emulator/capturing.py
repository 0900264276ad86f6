"""Collect the programs that a TPU would be asked to compile, as torch_tpu wrote them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tpu_kernels.emulator.recording import CapturedPrograms, Recorder
from tpu_kernels.emulator.state import STATE
from tpu_kernels.errors import EmulatorError, explain


@contextlib.contextmanager
def capture(*, run: bool = False, interpret: bool | None = None) -> Iterator[CapturedPrograms]:
    """Inside, every program that torch_tpu hands to PJRT is kept in the list that this yields.

        with emulator.capture() as programs:
            step(tokens)                # eager ops and functions of torch.compile alike
        programs[-1].stablehlo          # a StableHLO portable artifact, for libtpu or another compiler
        programs.runs                   # the index of a program for each time that one would have run

    Nothing is compiled for this machine and nothing runs, so kernels may be Mosaic kernels and weights
    may be larger than its memory, as long as they are born on the device (`torch.empty(...,
    device="tpu")`, or a model on `meta` after `to_empty(device="tpu")`). Results have the right
    shapes; small ones are zeros, the values of others mean nothing, and so it stays for every tensor
    that was written inside. Code that decides on values decides on zeros.

    `run=True` compiles and runs everything as usual besides. `interpret` says whether Pallas kernels
    are traced in interpret mode; by default they are if and only if the programs run. Without
    interpret mode, torch_tpu's own flash attention is allowed too, as on a TPU.

    What was compiled before is compiled anew inside, and once more afterwards: torch.compile and the
    caches of torch_tpu are reset on entry and on exit. Name a graph with
    `torch.compile(..., options={"name": ...})` to find it again. Captures do not nest. Raises
    EmulatorError outside the emulator or inside another capture.
    """
    if not STATE.active or STATE.recorder is not None:
        raise EmulatorError(
            explain(
                "capture() needs a running emulator, and captures do not nest.",
                got="another capture is open" if STATE.active else "the emulator is not running",
                next_step="call it once, in a process started with `python -m tpu_kernels.emulator SCRIPT`",
            )
        )
    import torch
    from torch_tpu._internal.device import _device_ops_backend

    recorder = Recorder(run=run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_kernels(interpret=run if interpret is None else interpret))
        # An on-disk entry would hide a program from the capture, or outlive it.
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.callback(_forget_compiled)
        _forget_compiled()
        generator = _device_ops_backend.get_default_generator(0)
        random_state = generator.get_state()
        STATE.recorder = recorder
        try:
            yield recorder.programs
            torch.accelerator.synchronize()
        finally:
            STATE.recorder = None
            generator.set_state(random_state)


def _forget_compiled() -> None:
    """Wait for the device, then drop every compiled program of torch.compile and torch_tpu."""
    import torch
    from torch_tpu._internal.device import _device_ops_backend

    torch.accelerator.synchronize()
    torch.compiler.reset()
    _device_ops_backend._clear_cache()


@contextlib.contextmanager
def _kernels(*, interpret: bool) -> Iterator[None]:
    """Trace Pallas kernels in interpret mode or not, and allow torch_tpu's Mosaic kernels if not."""
    import torch
    from jax.experimental.pallas import tpu as pltpu
    from torch_tpu._internal.pallas import pallas

    if interpret:
        yield
        return
    key = pallas._get_kernel_invocation_key
    # torch_tpu keeps a traced kernel per shape, whatever the mode in which it was traced.
    pallas._get_kernel_invocation_key = _suffixed(key, ";mosaic")
    pltpu.set_tpu_interpret_mode(False)  # type: ignore[arg-type]
    torch.backends.cuda.enable_flash_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(False)
        pltpu.set_tpu_interpret_mode(True)  # type: ignore[arg-type]
        pallas._get_kernel_invocation_key = key


def _suffixed(function: Callable[..., str], suffix: str) -> Callable[..., str]:
    @functools.wraps(function)
    def key(*args: Any, **kwargs: Any) -> str:
        return function(*args, **kwargs) + suffix

    return key

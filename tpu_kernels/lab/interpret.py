"""Runs a JAX function with Pallas kernels on the CPU, under one of Pallas' two interpreters, on torch tensors.

* `hlo_interpreted`: the kernel as plain HLO, quick; the emulator runs kernels so.
* `race_checked`: Pallas' TPU interpreter, which simulates memory, copies and semaphores. Memory that was never
  written is NaN, reads out of bounds raise, and a race raises here.

Neither knows what the TPU compiler refuses: see `aot`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from tpu_kernels.errors import TpuKernelsError, explain

_reset_interpreter: Callable[[], None] = pltpu.reset_tpu_interpret_mode_state

JaxFunction = Callable[..., Any]
"""Of arrays, and of keywords that are constants of its program."""

OnTorch = Callable[..., Any]
"""The same function of torch tensors on the CPU: a tensor comes back, or a tuple of tensors."""

# Interpreted kernels are large programs over small arrays: nearly all of the time is XLA's.
_QUICK_COMPILE: Final = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


class KernelRaceError(TpuKernelsError):
    """A kernel reads or writes memory that a copy under way also touches."""


def to_jax(tensor: torch.Tensor | None) -> jax.Array | None:
    """The same numbers as a JAX array on the CPU; bfloat16 stays bfloat16."""
    if tensor is None:
        return None
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def to_torch(array: jax.Array) -> torch.Tensor:
    """The same numbers as a torch tensor; bfloat16 stays bfloat16."""
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(np.array(array.astype(jnp.float32))).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def hlo_interpreted(function: JaxFunction, **tuning: Any) -> OnTorch:
    """`function` on CPU tensors through the HLO interpreter; `tuning` is handed on."""
    return _on_torch(function, True, tuning)


def race_checked(function: JaxFunction, copies: Literal["late", "early"] = "late", **tuning: Any) -> OnTorch:
    """`function` on CPU tensors through the TPU interpreter.

    Copies happen `late`, when they are waited for, or `early`, when they are started. A copy that is never waited
    for leaves NaN behind in the first mode and is a race in the second; every other race shows in both.

    The call raises KernelRaceError on a race, and whatever the interpreter raises for other faults; the shared state
    of the interpreter is cleaned up either way.
    """
    parameters = pltpu.InterpretParams(
        detect_races=True,
        # A copy gets one of these clocks by chance, and two that share one count as ordered. The default of 2 leaves
        # a single clock for all copies of a device, and hardly any race is seen.
        vector_clock_size=256,
        dma_execution_mode="on_wait" if copies == "late" else "eager",
        uninitialized_memory="nan",
        out_of_bounds_reads="raise",
    )
    run = _on_torch(function, parameters, tuning)

    def checked(*args: Any, **kwargs: Any) -> Any:
        _reset_interpreter()
        try:
            result = run(*args, **kwargs)
            races = interpret_pallas_call.races
            if races is None:
                raise KernelRaceError(
                    explain(
                        "The race detector did not run.",
                        needs="a function that calls a Pallas TPU kernel",
                        next_step="check that the function reaches its pallas_call",
                    )
                )
            if races.races_found:
                raise KernelRaceError(
                    explain(
                        "The kernel has a race: a copy and an access to the same memory are not ordered.",
                        next_step="the interpreter printed the accesses above; wait for the copy before the access",
                    )
                )
            return result
        finally:
            _reset_interpreter()

    return checked


def _on_torch(function: JaxFunction, mode: Any, tuning: dict[str, Any]) -> OnTorch:
    options = inspect.signature(function).parameters.values()
    static = [option.name for option in options if option.kind is option.KEYWORD_ONLY]
    # One wrapper per mode: jax.jit would share what it compiled between equal functions.
    traced = jax.jit(functools.partial(function), static_argnames=static, compiler_options=_QUICK_COMPILE)

    def run(*tensors: torch.Tensor | None, **keywords: Any) -> Any:
        with jax.default_device(jax.devices("cpu")[0]), pltpu.force_tpu_interpret_mode(mode):
            return jax.tree.map(to_torch, traced(*map(to_jax, tensors), **keywords, **tuning))

    return run

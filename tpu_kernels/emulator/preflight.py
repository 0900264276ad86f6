"""What must hold before the emulator touches the process; each refusal says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import warnings
from pathlib import Path

from tpu_kernels.emulator.chips import find_tpu_chips
from tpu_kernels.errors import EmulatorError, explain

FORCE_VARIABLE = "TPU_KERNELS_EMULATOR_FORCE"
TRIED_TORCH_TPU = "0.2.0"

_INSTALL = 'pip install "tpu-kernels[emulator]"'


def check_nothing_imported_too_early() -> None:
    """Raise EmulatorError if torch or torch_tpu is loaded already."""
    early = [name for name in ("torch", "torch_tpu") if name in sys.modules]
    if early:
        raise EmulatorError(
            explain(
                "The emulated TPU cannot start: torch was imported before it.",
                needs="a process in which nothing has imported torch yet",
                got=f"{' and '.join(early)} already in sys.modules",
                next_step="call tpu_kernels.emulator.start() in the first lines of the program, or run it\n"
                "as `python -m tpu_kernels.emulator SCRIPT`; for a test suite pass\n"
                "`-p tpu_kernels.emulator.pytest_plugin` to pytest.",
            )
        )


def check_no_tpu(*, force: bool) -> None:
    """Raise EmulatorError on a machine with a TPU, unless forced."""
    chips = find_tpu_chips()
    if chips and not force:
        seen = ", ".join(f"TPU {chip.generation} at {chip.node}" for chip in chips)
        raise EmulatorError(
            explain(
                "The emulated TPU was not started: this machine has a real one.",
                got=seen,
                next_step="run the program as it is, without the emulator; or, to emulate all the same,\n"
                f"pass force=True (`--force` on the command line) or set {FORCE_VARIABLE}=1.",
            )
        )


def check_torch_tpu(*, force: bool) -> None:
    """Raise EmulatorError if torch_tpu is missing or of a version whose insides nobody has tried.

    The emulator knows private parts of torch_tpu. Within one minor version a new patch release
    only warns.
    """
    try:
        version = importlib.metadata.version("torch_tpu")
    except importlib.metadata.PackageNotFoundError:
        raise EmulatorError(
            explain(
                "The emulated TPU cannot start: torch_tpu is not installed.",
                needs=f"torch_tpu {TRIED_TORCH_TPU}",
                next_step=f"install it: {_INSTALL}",
            )
        ) from None
    if version == TRIED_TORCH_TPU:
        return
    message = explain(
        f"The emulated TPU has not been tried with torch_tpu {version}.",
        needs=f"torch_tpu {TRIED_TORCH_TPU}, the version that the emulator was tested on",
        got=f"torch_tpu {version}",
        next_step=f"install the tested version: pip install torch_tpu=={TRIED_TORCH_TPU}; or try this one:\n"
        f"pass force=True (`--force` on the command line) or set {FORCE_VARIABLE}=1.",
    )
    same_minor = version.split(".")[:2] == TRIED_TORCH_TPU.split(".")[:2]
    if not (force or same_minor):
        raise EmulatorError(message)
    warnings.warn(message, stacklevel=3)


def cpu_plugin_path() -> Path:
    """XLA's CPU PJRT plugin, a shared object. Raises EmulatorError where it is not installed."""
    for module, distribution in (("lammps_jax_pjrt_cpu", "lammps-jax-pjrt-cpu"), ("pypjrt", "pypjrt")):
        if importlib.util.find_spec(module) is None:
            raise EmulatorError(
                explain(
                    f"The emulated TPU cannot start: {distribution} is not installed.",
                    needs="XLA's CPU PJRT plugin (lammps-jax-pjrt-cpu) and its C interface (pypjrt)",
                    next_step=f"install both: {_INSTALL}",
                )
            )
    import lammps_jax_pjrt_cpu

    path = Path(lammps_jax_pjrt_cpu.PLUGIN_PATH)
    if not path.is_file():
        raise EmulatorError(
            explain(
                "The emulated TPU cannot start: the CPU plugin's shared object is missing.",
                needs=str(path),
                next_step="reinstall it: pip install --force-reinstall lammps-jax-pjrt-cpu==0.11.2",
            )
        )
    return path

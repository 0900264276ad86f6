"""Exceptions of tpu_kernels.

    TpuKernelsError
    ├── StackError               versions or devices that do not fit together
    │   ├── EmulatorError        the emulated TPU could not start, or was started too late
    │   └── LaunchError          the processes of a launch cannot be started here as asked
    ├── SpecError                a kernel spec is malformed (carries file and line)
    │   └── DuplicateSpecError   two specs share one name
    ├── KernelLoadError          a Hub kernel could not be found, trusted or imported
    ├── KernelRejectedError      a kernel does not fit the layer it was asked to replace
    ├── KernelFailedError        a kernel failed when it was traced, compiled or first run
    ├── NoMatchError             nothing in the model matches any spec
    ├── ModelNotOnTpuError       the model is not where its kernels would run
    ├── ModelStructureError      no transformers model was found in the given object
    ├── TensorParallelError      a model cannot be divided over so many chips
    ├── RanksDisagreeError       the processes of one divided model do different things
    ├── CacheTooSmallError       the prompt and the new tokens do not fit the cache asked for
    ├── CacheTooLargeError       the cache would not fit the memory of the chip
    └── CompileError             the TPU compiler refused a program

Every message says what failed, where, what was expected, what was found and what to do next.
"""

from __future__ import annotations


def explain(
    what: str,
    *,
    needs: str | None = None,
    got: str | None = None,
    next_step: str | None = None,
) -> str:
    """One message in the house layout: a sentence, then `Needs:`, `Got:` and `Next:` lines."""
    lines = [what]
    for label, text in (("Needs:", needs), ("Got:", got), ("Next:", next_step)):
        if text:
            first, *rest = text.splitlines()
            lines.append(f"  {label:<6} {first}")
            lines.extend(f"         {line}" for line in rest)
    return "\n".join(lines)


class TpuKernelsError(Exception):
    """Root of every exception that tpu_kernels raises on purpose."""


class StackError(TpuKernelsError):
    """Installed versions or devices do not fit together."""


class EmulatorError(StackError):
    """The emulated TPU could not start."""


class LaunchError(StackError):
    """The processes of a launch cannot be started here as asked."""


class SpecError(TpuKernelsError, ValueError):
    """A kernel spec is malformed; `file` and `line` say where (line counts from 1)."""

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file = file
        self.line = line
        super().__init__(message)


class DuplicateSpecError(SpecError):
    """Two specs share one name."""


class KernelLoadError(TpuKernelsError):
    """A Hub kernel could not be found, trusted or imported."""


class KernelRejectedError(TpuKernelsError):
    """A kernel does not fit the layer that it was asked to replace."""


class KernelFailedError(TpuKernelsError):
    """A kernel failed when it was traced, compiled or first run."""


class NoMatchError(TpuKernelsError):
    """Nothing in the model matches any spec."""


class ModelNotOnTpuError(TpuKernelsError):
    """The model is not on a TPU, so no TPU kernel can run in it."""


class ModelStructureError(TpuKernelsError):
    """No transformers model was found in the object given."""


class TensorParallelError(TpuKernelsError, ValueError):
    """A model cannot be divided over the number of chips asked for."""


class RanksDisagreeError(TpuKernelsError):
    """The processes that hold the shards of one model do different things."""


class CacheTooSmallError(TpuKernelsError, ValueError):
    """The prompt and its new tokens do not fit the cache length asked for."""


class CacheTooLargeError(TpuKernelsError):
    """The key/value cache would not fit the memory of the chip."""


class CompileError(TpuKernelsError):
    """The TPU compiler refused a program."""

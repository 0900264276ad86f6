"""A kernel that fails late: when it is traced, when the TPU compiler refuses it, or by what it returns.

The call that met the failure is repeated with the fallback; the kernel is not tried again in this model. The report
and one warning carry the compiler's line.
"""

from __future__ import annotations

from typing import Any

from tpu_kernels._logging import logger
from tpu_kernels.apply.session import Session
from tpu_kernels.errors import KernelFailedError, explain
from tpu_kernels.runtime.dispatch import LayerDispatch, Program

_TELLING = (
    "mosaic",
    "no registered implementation",
    "vmem",
    "resource_exhausted",
    "ran out of memory",
    "unimplemented",
    "raised exception",  # of the kernel's own code, as Dynamo tells it
)
_LONGEST_LINE = 300


def telling_line(error: BaseException) -> str:
    """The line of an error that says what went wrong: the compiler's where there is one, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = next((line for line in lines if any(word in line.lower() for word in _TELLING)), None)
    line = chosen or (lines[0] if lines else type(error).__name__)
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


def suspects(program: Program) -> list[str]:
    """Spec names of the kernels that a graph holds."""
    return sorted({decision.chosen for decision in program.decisions.values() if decision.is_kernel})


def _what(specs: list[str]) -> str:
    return f"`{'`, `'.join(specs)}` failed"


def silence(session: Session, specs: list[str], line: str, error: BaseException | None) -> None:
    """Let the fallback run in the place of these kernels.

    With on_reject="error" the model is put back instead, and KernelFailedError is raised.
    """
    if session.settings.on_reject == "error":
        session.undo()
        raise KernelFailedError(
            explain(
                f"{_what(specs)} after it was swapped in; the model was put back as it was.",
                got=line,
                next_step='enable with on_reject="fallback" to run the rest without it, or exclude its layers.',
            )
        ) from error
    reason = f"the kernel failed: {line}"
    for layer in session.layers:
        if layer.kernel is not None and layer.kernel.spec.name in specs:
            layer.retire(reason)


def announce(session: Session, specs: list[str], line: str) -> None:
    """Say, in the report and in one warning, that the fallback runs for good."""
    session.failures += 1
    session.note(f"{_what(specs)}, its fallback runs: {line}")
    logger.warning("%s, its fallback runs: %s", _what(specs), line)


def reinstate(session: Session, specs: list[str]) -> None:
    """Give retired kernels back: the fallback failed in the same way, so it was not they."""
    for layer in session.layers:
        layer.reinstate(specs)


def take_smaller_blocks(session: Session, specs: list[str], line: str) -> bool:
    """Where `line` says that a compile ran out of VMEM, give the kernels the smallest blocks that their specs name.

    Returns whether that changed anything, so that another try is worth it.
    """
    if "vmem" not in line.lower():
        return False
    concerned = [layer for layer in session.layers if layer.kernel is not None and layer.kernel.spec.name in specs]
    changed = [layer for layer in concerned if layer.take_small_tuning()]
    if not changed:
        return False
    session.note(f"`{'`, `'.join(specs)}` ran out of VMEM and takes smaller blocks: {line}")
    logger.warning("`%s` ran out of VMEM and takes smaller blocks: %s", "`, `".join(specs), line)
    return True


class EagerFailure:
    """What a layer does when its kernel fails in an eager call: smaller blocks where VMEM ran out, else it retires
    the kernel for the whole model. Answers whether to try again."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, layer: LayerDispatch, error: Exception) -> bool:
        if layer.kernel is not None:
            specs, line = [layer.kernel.spec.name], telling_line(error)
            if take_smaller_blocks(self._session, specs, line):
                return True
            silence(self._session, specs, line, error)
            announce(self._session, specs, line)
        return False


def not_finite(outputs: Any) -> str | None:
    """A line for the report where the logits are not all finite, else None."""
    logits = getattr(outputs, "logits", None)
    if logits is None or bool(logits.isfinite().all()):
        return None
    return "its output is not finite in the first call"

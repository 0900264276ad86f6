"""One decision for all ranks of a divided model, before anything runs that some of them could not run."""

from __future__ import annotations

from typing import Any

from tpu_kernels._logging import logger
from tpu_kernels.apply.late_failure import telling_line
from tpu_kernels.apply.session import Session
from tpu_kernels.errors import RanksDisagreeError
from tpu_kernels.plan.binding import changed_part
from tpu_kernels.runtime.dispatch import Program


class Settlement:
    """What the ranks said to each other about one program, whenever it is compiled.

    done      whether they did in the call that is under way
    refused   why some rank could not trace or compile it, or None
    differing whether they decided differently for some layer, whose kernel none of them has any more: it has to be
              traced anew
    trouble   the ranks did not come to the same point
    """

    def __init__(self, session: Session, program: Program) -> None:
        self._session, self._program = session, program
        self.done = False
        self.refused: str | None = None
        self.differing = False
        self.trouble: RanksDisagreeError | None = None

    def reach(self, failure: Exception | None) -> None:
        """Tell the others what this rank decided, and its failure if it had one; hear what they say."""
        ranks = self._session.ranks
        if ranks.is_alone:
            return
        self.done = True
        taken = {path: each.reason for path, each in self._program.decisions.items() if not each.is_kernel}
        line = telling_line(failure) if failure is not None else None
        try:
            answers = ranks.agree(f"compiling {self._program.name}", [line, taken])
        except RanksDisagreeError as error:
            self.trouble = error
            raise
        self.refused = ranks.first([each for each, _ in answers])
        if self.refused is None:
            self.differing = retire_where_ranks_differ(self._session, [each for _, each in answers])


def retire_where_ranks_differ(session: Session, reasons: list[dict[str, str]]) -> bool:
    """Take the kernel from every layer that some ranks, but not all, would call without it. `reasons` holds for each
    rank why which layers do without. Returns whether there was any."""
    ranks = session.ranks
    some = {path for each in reasons for path in each if not all(path in other for other in reasons)}
    for layer in session.layers:
        if layer.path in some:
            layer.retire(ranks.first([each.get(layer.path, "") for each in reasons]) or "")
            session.note(f"{layer.path} does without its kernel on every rank: {layer.reason}")
            logger.warning("%s does without its kernel on every rank: %s", layer.path, layer.reason)
    return bool(some)


def compare_ranks(session: Session) -> bool:
    """Before a call of `generate`: what has been changed in the layers since, on some ranks alone. Returns whether
    kernels were taken away for it, so that what was compiled does not hold any more."""
    if session.ranks.is_alone:
        return False
    return retire_where_ranks_differ(session, session.ranks.agree("generate", _changed(session)))


def _changed(session: Session) -> dict[str, str]:
    """Which layers cannot use their kernel any more as they are now, and why."""
    changed: dict[str, Any] = {}
    modules = dict(session.model.named_modules())
    for layer in session.layers:
        module = modules.get(layer.path)
        part = changed_part(module, layer.binding) if module is not None and layer.binding is not None else None
        if layer.kernel is None:
            changed[layer.path] = layer.reason
        elif part is not None:
            changed[layer.path] = f"a part was replaced: {part}"
    return changed

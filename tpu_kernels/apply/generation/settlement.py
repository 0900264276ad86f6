"""One decision for all ranks of a divided model, before anything runs that some of them could not run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tpu_kernels._logging import logger
from tpu_kernels.apply.late_failure import suspects, telling_line
from tpu_kernels.apply.session import Session
from tpu_kernels.errors import RanksDisagreeError, explain
from tpu_kernels.plan.binding import changed_part
from tpu_kernels.runtime.dispatch import Program


class Settlement:
    """What the ranks said to each other about one program, whenever it is compiled.

    done      whether they did in the call that is under way
    refused   why some rank could not trace or compile it, or None
    differing whether they decided differently for some layer, whose kernel none of them has any more: it has to be
              traced anew
    suspects  the kernels that some rank's graph holds
    trouble   the ranks did not come to the same point
    """

    def __init__(self, session: Session, program: Program) -> None:
        self._session, self._program = session, program
        self.done = False
        self.refused: str | None = None
        self.differing = False
        self.suspects: list[str] = []
        self.trouble: RanksDisagreeError | None = None

    def reach(self, failure: Exception | None) -> None:
        """Tell the others what this rank decided, and its failure if it had one; hear what they say."""
        ranks = self._session.ranks
        if ranks.is_alone:
            return
        self.done = True
        taken = {path: each.reason for path, each in self._program.decisions.items() if not each.is_kernel}
        line = telling_line(failure) if failure is not None else None
        held = suspects(self._program)
        try:
            answers = ranks.agree(f"compiling {self._program.name}", [line, taken, held])
        except RanksDisagreeError as error:
            self.trouble = error
            raise
        self.refused = ranks.first([each for each, *_ in answers])
        self.suspects = sorted({kernel for *_, held in answers for kernel in held})
        if self.refused is None:
            self.differing = retire_where_ranks_differ(self._session, [each for _, each, _ in answers])


def retire_where_ranks_differ(session: Session, reasons: list[dict[str, str]]) -> bool:
    """Take the kernel from every layer that some ranks, but not all, would call without it. `reasons` holds for each
    rank why which layers do without. Returns whether there was any."""
    ranks = session.ranks
    some = {path for each in reasons for path in each if not all(path in other for other in reasons)}
    retired = False
    for layer in session.layers:
        if layer.path in some and layer.kernel is not None:
            retired = True
            layer.retire(ranks.first([each.get(layer.path, "") for each in reasons]) or "")
            session.note(f"{layer.path} does without its kernel on every rank: {layer.reason}")
            logger.warning("%s does without its kernel on every rank: %s", layer.path, layer.reason)
    if some and not retired and not session.ranks.is_alone:
        raise RanksDisagreeError(
            explain(
                "The ranks call different layers.",
                needs="the same model on every rank",
                got=f"not on every rank: {', '.join(sorted(some))}",
                next_step="change a model alike on every rank, or not at all.",
            )
        )
    return retired


@dataclass(frozen=True)
class Compared:
    """What the ranks found in common before a call of `generate`: why it runs the plain way on all of them, or None;
    and whether kernels were taken away, so that what was compiled does not hold any more."""

    plain: str | None
    retired: bool


def compare_ranks(session: Session, plain: str | None, asked: str) -> Compared:
    """Before a call of `generate`: which layers were changed since, which way the call goes, and what it asks for.

    Raises RanksDisagreeError where the ranks ask for different things.
    """
    ranks = session.ranks
    if ranks.is_alone:
        return Compared(plain, False)
    answers = ranks.agree("generate", [_changed(session), plain, asked])
    if len({each for *_, each in answers}) > 1:
        raise RanksDisagreeError(
            explain(
                "generate was called with different inputs on different ranks of one model.",
                needs="the same tokens and arguments everywhere, and for sampling the same seed (torch.manual_seed)",
                got=", ".join(f"rank {rank}: {each}" for rank, (*_, each) in zip(ranks.members, answers, strict=True)),
                next_step="broadcast the inputs of one rank, or make them in the same way on all.",
            )
        )
    retired = retire_where_ranks_differ(session, [each for each, *_ in answers])
    said = [each for _, each, _ in answers]
    return Compared(plain if len(set(said)) == 1 else ranks.first(said), retired)


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


def asked_for(arguments: Mapping[str, Any]) -> str:
    """A digest of a call's tensors and plain arguments, and of the state that sampling starts from."""
    digest = hashlib.sha256()
    for name in sorted(arguments):
        value = arguments[name]
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(str(value.tolist()).encode())
        elif isinstance(value, bool | int | float | str | None):
            digest.update(f"{name} {value!r}".encode())
    if arguments.get("do_sample"):
        digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()[:16]

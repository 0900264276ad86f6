"""The result for one architecture."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

TOLERANCE = 1e-3
"""Largest difference of float32 logits of a tiny model. Sums in another order stay below 1e-4."""


class Outcome(BaseModel):
    """Whether an architecture's tokens are those of the reference under one policy, or in plain transformers.

    equal, padded  tokens equal and logits within TOLERANCE, for two prompts and for a left-padded batch; `padded` is
                   None where plain transformers itself is not right
    logits         largest difference of the logits, over both
    ran            what each kind of layer ran: "attention, decode: attention/static-attention", …; for a fallback
                   with its reason in parentheses
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    equal: bool = False
    padded: bool | None = None
    logits: float | None = None
    ran: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """True if everything that plain transformers gets right is right here too."""
        return self.equal and self.padded is not False


class Row(BaseModel):
    """What was swapped in one architecture, and whether its tokens are those of the reference.

    outcomes  by policy ("auto", "always"), or "plain"
    layers    how many layers there are, by op
    swapped   how many of them got a kernel with policy "always", by op
    kernels   how many layers each kernel got with that policy, by the spec's name
    kept      why the others were kept, by op: how many for each reason
    error     the exception or the death of the process, else None
    run       what was run: flow, policies, specs, the list of architectures, versions of the packages
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    outcomes: dict[str, Outcome] = {}
    layers: dict[str, int] = {}
    swapped: dict[str, int] = {}
    kernels: dict[str, int] = {}
    kept: dict[str, dict[str, int]] = {}
    error: str | None = None
    seconds: float = 0.0
    run: str = ""

    @property
    def right(self) -> bool:
        return self.error is None and bool(self.outcomes) and all(each.right for each in self.outcomes.values())

    @property
    def equal(self) -> bool:
        """Whether two prompts gave the reference's tokens in every outcome."""
        return bool(self.outcomes) and all(each.equal for each in self.outcomes.values())

    @property
    def padded(self) -> bool | None:
        """Whether a left-padded batch did; None where plain transformers itself is not right."""
        answers = [each.padded for each in self.outcomes.values() if each.padded is not None]
        return all(answers) if answers else None

    def kernel_ran(self, op: str = "attention") -> bool:
        """Whether some layer of that op ran a kernel, and not only fallbacks, which come with a reason."""
        return any(ran.startswith(f"{op}, ") and "(" not in ran for each in self.outcomes.values() for ran in each.ran)

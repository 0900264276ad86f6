"""The result for one architecture."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

TOLERANCE = 1e-3
"""Largest difference of float32 logits of a tiny model. Sums in another order stay below 1e-4."""


class Row(BaseModel):
    """What was swapped in one architecture, and whether its tokens are those of the reference.

    equal, padded  tokens equal and logits within TOLERANCE, for two prompts and for a left-padded batch; `padded` is
                   None where plain transformers itself is not right
    logits         largest difference of the logits, over both
    kept           how many layers were kept, by reason
    ran            what the attention layers ran: "decode: attention/static-attention", …
    error          the exception or the death of the process, else None
    run            what was run: flow, specs, the list of architectures, versions of the packages
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    equal: bool = False
    padded: bool | None = None
    logits: float | None = None
    layers: int = 0
    swapped: int = 0
    kept: dict[str, int] = {}
    ran: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    seconds: float = 0.0
    run: str = ""

    @property
    def kernel_ran(self) -> bool:
        """Whether some layer ran a kernel and not only fallbacks, which come with a reason."""
        return any("(" not in ran for ran in self.ran)

    @property
    def right(self) -> bool:
        """True if everything that plain transformers gets right is right here too."""
        return self.error is None and self.equal and self.padded is not False

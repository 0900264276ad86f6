"""What the demonstration found, as data. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Generated:
    """What one call of `generate` did.

    `prompt_tokens` is a number of tokens; `new_tokens` are token ids and `text` is what they say;
    `compilations` were counted during the call; `seconds` is its wall time, compilations included.
    """

    prompt: str
    prompt_tokens: int
    new_tokens: tuple[int, ...]
    text: str
    compilations: int
    seconds: float


@dataclass(frozen=True)
class Findings:
    """The same prompts in the same order, with tpu-kernels (`ours`) and without (`plain`).

    `report` is the printed report of `enable_tpu_kernels` after the calls, `fallbacks` names every layer and
    phase that ran something else than a kernel, `unit` says what `compilations` count.
    """

    report: str
    fallbacks: tuple[str, ...]
    unit: str
    ours: tuple[Generated, ...]
    plain: tuple[Generated, ...]

    @property
    def first_difference(self) -> str | None:
        """Where the tokens of the two part, in words; None if all are equal."""
        for mine, other in zip(self.ours, self.plain, strict=True):
            if mine.new_tokens != other.new_tokens:
                pairs = zip(mine.new_tokens, other.new_tokens, strict=False)
                shorter = min(len(mine.new_tokens), len(other.new_tokens))
                same = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
                return f"after the prompt of {mine.prompt_tokens} tokens, at new token {same + 1}"
        return None

    @property
    def recompilations(self) -> tuple[int, int]:
        """Compilations in all calls but the first: with tpu-kernels, plain."""
        ours, plain = (sum(run.compilations for run in runs[1:]) for runs in (self.ours, self.plain))
        return ours, plain

    @property
    def hold(self) -> bool:
        """Tokens equal, nothing compiled after the first call, and kernels alone ran."""
        return self.first_difference is None and self.recompilations[0] == 0 and not self.fallbacks

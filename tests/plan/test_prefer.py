"""`prefer` says which calls a kernel is known to win; policy "auto" heeds it, "always" does not."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig

from tests.support.models import TINY
from tpu_kernels import KernelSpec, SpecError, plan_tpu_kernels
from tpu_kernels.plan.match import LayerFacts, not_preferred
from tpu_kernels.specs import BundledSource, Dimension, Requires
from tpu_kernels.specs.parts import Preference


def spec(prefer: Any, name: str = "norm/mine", **fields: Any) -> KernelSpec:
    features = ("rms_norm", "weight", "round_then_scale")
    return KernelSpec(
        name=name,
        op="norm",
        description="for tests",
        source=BundledSource(name="norm"),
        function="norm",
        requires=Requires(dtypes=("float32", "bfloat16"), features=features),
        prefer=prefer,
        **fields,
    )


def facts(**sizes: int) -> LayerFacts:
    return LayerFacts("LlamaRMSNorm", "bfloat16", sizes)


CASES: dict[str, tuple[Any, LayerFacts, str | None, Any, bool]] = {
    "nothing said": (None, facts(tokens=9), "v6e", "compiled", True),
    "never": ((), facts(), None, None, False),
    "mode": ((Preference(mode="eager"),), facts(), None, "eager", True),
    "another mode": ((Preference(mode="eager"),), facts(), None, "compiled", False),
    "mode not known yet": ((Preference(mode="eager"),), facts(), None, None, True),
    "tokens": ((Preference(tokens=Dimension(max=8)),), facts(tokens=8), None, None, True),
    "too many tokens": ((Preference(tokens=Dimension(max=8)),), facts(tokens=9), None, None, False),
    "tokens not known yet": ((Preference(tokens=Dimension(max=8)),), facts(), None, None, True),
    "generation": ((Preference(generations=("v6e",)),), facts(), "v6e", None, True),
    "another generation": ((Preference(generations=("v6e",)),), facts(), "v5e", None, False),
    "another dtype": ((Preference(dtypes=("float32",)),), facts(), None, None, False),
    "all of one must hold": (
        (Preference(mode="eager", tokens=Dimension(max=8)),),
        facts(tokens=9),
        None,
        "eager",
        False,
    ),
    "one of several is enough": (
        (Preference(mode="eager"), Preference(tokens=Dimension(max=8))),
        facts(tokens=2),
        None,
        "compiled",
        True,
    ),
}


@pytest.mark.parametrize(("prefer", "known", "generation", "mode", "wins"), CASES.values(), ids=CASES.keys())
def test_preference(prefer: Any, known: LayerFacts, generation: str | None, mode: Any, wins: bool) -> None:
    assert (not_preferred(spec(prefer), known, generation, mode) is None) is wins


def test_the_reason_says_where_the_kernel_wins() -> None:
    prefer = (Preference(mode="eager"), Preference(generations=("v6e",), tokens=Dimension(min=2, max=8)))
    reason = not_preferred(spec(prefer), facts(tokens=9), "v6e", "compiled")
    assert reason == "norm/mine is preferred for eager runs; or v6e, tokens >= 2 and tokens <= 8 only (<python>)"
    assert "policy='always'" in str(not_preferred(spec(()), facts()))


def test_auto_leaves_what_no_preference_names_and_always_does_not() -> None:
    config = LlamaConfig(**TINY, num_hidden_layers=1)
    mine = spec((Preference(generations=("v5e",)),))

    def kernels(**options: Any) -> set[str]:
        plan = plan_tpu_kernels(config, [mine], include=["*norm*"], **options)
        return {entry.kernel.name for entry in plan.swapped if entry.kernel is not None}

    assert kernels(policy="auto", generation="v5e") == {"norm/mine"}
    assert kernels(policy="always", generation="v6e") == {"norm/mine"}
    assert "norm/mine" not in kernels(policy="auto", generation="v6e")
    kept = plan_tpu_kernels(config, [spec((), name="norm/never")], include=["*norm*"]).entries
    assert all("norm/never" not in str(entry.kernel) for entry in kept)


def test_bad_preferences() -> None:
    with pytest.raises(SpecError, match="says nothing"):
        Preference()
    with pytest.raises(SpecError, match=r"'top_k' is not a size of norm layers"):
        spec((Preference(top_k=Dimension(max=2)),))

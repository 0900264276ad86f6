"""Whether a kernel covers a layer: pure comparison of a spec's requirements with facts about the layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpu_kernels.errors import explain
from tpu_kernels.specs import KernelSpec
from tpu_kernels.specs.parts import Preference
from tpu_kernels.specs.vocabulary import Mode


@dataclass(frozen=True)
class LayerFacts:
    """What is known of a layer, or of one call of it.

    `sizes` holds the dimensions that are known (`head_dim`, `value_head_dim`, `key_length`, …); one that is missing
    is not checked. `features` are the features that the kernel must cover. `dtype` is a torch name like `float32`.
    """

    class_name: str
    dtype: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Rejection:
    """One requirement that a layer does not meet. `where` cites the line of the spec."""

    spec: str
    key: str
    needs: str
    got: str
    where: str

    def __str__(self) -> str:
        return f"{self.spec} needs {self.needs}, got {self.got}"


def rejections(spec: KernelSpec, facts: LayerFacts, generation: str | None = None) -> tuple[Rejection, ...]:
    """Every requirement of `spec` that `facts` break on that TPU generation (None: any generation)."""
    found: list[Rejection] = []

    def reject(key: str, needs: str, got: str) -> None:
        found.append(Rejection(spec.name, key, needs, got, spec.cite(key)))

    if not spec.match.accepts(facts.class_name):
        reject("match.classes", f"a class of {', '.join(spec.match.classes or ())}", facts.class_name)
    requires = spec.requires
    if facts.dtype is not None and facts.dtype not in requires.dtypes:
        reject("requires.dtypes", f"dtype in {', '.join(requires.dtypes)}", f"dtype = {facts.dtype}")
    for size, dimension in requires.dimensions().items():
        if size in facts.sizes:
            for bound, needs in dimension.unmet(size, facts.sizes[size]):
                reject(f"requires.{size}.{bound}", needs, f"{size} = {facts.sizes[size]}")
    for feature in sorted(facts.features - set(requires.features)):
        reject("requires.features", f"a layer without {feature}", f"a layer with {feature}")
    if generation is not None and requires.generations is not None and generation not in requires.generations:
        reject("requires.generations", f"a TPU of {', '.join(requires.generations)}", generation)
    return tuple(found)


def not_preferred(
    spec: KernelSpec, facts: LayerFacts, generation: str | None = None, mode: Mode | None = None
) -> str | None:
    """Why the kernel is not known to win a call with these facts, or None if it is, or if it may be.

    A fact that is missing (the number of tokens and the mode, before there is a call) counts as the best.
    """
    if spec.prefer is None or any(_may_hold(preference, facts, generation, mode) for preference in spec.prefer):
        return None
    return f"{spec.name} is preferred for {preferred_calls(spec)} only ({spec.cite('prefer')})"


def preferred_calls(spec: KernelSpec) -> str:
    """What `prefer` of a spec says, in words."""
    return "; or ".join(_in_words(preference) for preference in spec.prefer or ()) or "policy='always'"


def _may_hold(preference: Preference, facts: LayerFacts, generation: str | None, mode: Mode | None) -> bool:
    def unmet() -> bool:
        bounds = preference.dimensions().items()
        return any(size in facts.sizes and any(bound.unmet(size, facts.sizes[size])) for size, bound in bounds)

    return (
        (preference.mode is None or mode is None or mode == preference.mode)
        and (preference.dtypes is None or facts.dtype is None or facts.dtype in preference.dtypes)
        and (preference.generations is None or generation is None or generation in preference.generations)
        and not unmet()
    )


def _in_words(preference: Preference) -> str:
    words: list[str] = [] if preference.mode is None else [f"{preference.mode} runs"]
    words += [" or ".join(names) for names in (preference.dtypes, preference.generations) if names]
    words += [bound.describe(size) for size, bound in preference.dimensions().items()]
    return ", ".join(words)


def rejection_message(path: str, class_name: str, rejected: tuple[Rejection, ...], generation: str | None) -> str:
    """The message of the KernelRejectedError for one layer."""
    chip = f" on {generation}" if generation else ""
    if not rejected:
        return explain(f"No kernel was chosen for `{path}` ({class_name}){chip}.")
    names = sorted({rejection.spec for rejection in rejected})
    return explain(
        f"`{'`, `'.join(names)}` cannot replace `{path}` ({class_name}){chip}.",
        needs="\n".join(f"{rejection.needs}   ({rejection.where})" for rejection in rejected),
        got="\n".join(rejection.got for rejection in rejected),
        next_step='pass on_reject="fallback" to keep the original layer, or run `tpu-kernels plan MODEL`.',
    )

"""The sections of a kernel spec: where the kernel comes from, what it matches, what it requires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from tpu_kernels.specs.origin import Origin
from tpu_kernels.specs.problems import fault, spec_error
from tpu_kernels.specs.vocabulary import DType, Generation, Mode

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

_REPO_ID = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_LONGEST_REPO_ID = 96


def _repo_id(value: str) -> str:
    if (
        not _REPO_ID.fullmatch(value)
        or len(value) > _LONGEST_REPO_ID
        or "--" in value
        or ".." in value
        or value.endswith(".git")
    ):
        raise fault("bad_repo_id", f"{value!r} is not a Hub repository id")
    return value


def _identifier(value: str) -> str:
    if not value.isidentifier():
        raise fault("not_an_identifier", f"{value!r} is not a Python name")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise fault("empty_text", "the text is empty")
    return value


RepoId = Annotated[StrictStr, AfterValidator(_repo_id)]
Identifier = Annotated[StrictStr, AfterValidator(_identifier)]
Text = Annotated[StrictStr, AfterValidator(_text)]
PositiveInt = Annotated[StrictInt, Field(ge=1)]


class _RaisesSpecError(ModelMetaclass):
    """Calling a section in Python raises SpecError where pydantic would raise its own ValidationError."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **data: Any) -> Any:
            try:
                return super().__call__(*args, **data)
            except ValidationError as error:
                raise spec_error(error, cls, data, Origin(f"{cls.__name__}(...)")) from None


class Section(BaseModel, metaclass=_RaisesSpecError):
    """Base of every part of a spec: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class HubSource(Section):
    """A kernel repository on the Hugging Face Hub, at a version (branch `vN`) or at a revision.

    `trust` says who vouches for the code. `publisher`: the Hub must list the organisation as a trusted
    kernel publisher. `repo`: whoever wrote this spec vouches for this one repository.
    """

    kind: Literal["hub"] = "hub"
    repo: RepoId
    version: PositiveInt | None = None
    revision: Text | None = None
    trust: Literal["publisher", "repo"] = "publisher"

    @model_validator(mode="after")
    def _one_pin(self) -> Self:
        if self.version is not None and self.revision is not None:
            raise fault("version_and_revision", "a revision together with a version", key="revision")
        if self.version is None and self.revision is None:
            raise fault("no_pin", "neither a version nor a revision")
        return self

    @property
    def trust_remote_code(self) -> bool | list[str]:
        """The argument of that name of `kernels.get_kernel`: False, or a list of this one repository."""
        return [self.repo] if self.trust == "repo" else False

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision or f'v{self.version}'}"


class BundledSource(Section):
    """A kernel repository that ships inside this package, `tpu_kernels/hub_kernels/<name>`."""

    kind: Literal["bundled"] = "bundled"
    name: Annotated[StrictStr, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]

    def __str__(self) -> str:
        return f"bundled {self.name}"


class PathSource(Section):
    """A kernel repository in a folder of this machine.

    In a YAML file `path` is relative to the file's own folder and may not leave it. In Python it may be any
    path; a relative one counts from the working directory.
    """

    kind: Literal["path"] = "path"
    path: Text

    def __str__(self) -> str:
        return self.path


Source = Annotated[HubSource | BundledSource | PathSource, Field(discriminator="kind")]


class Dimension(Section):
    """What one size must satisfy; bounds are inclusive."""

    min: PositiveInt | None = None
    max: PositiveInt | None = None
    multiple_of: PositiveInt | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.min is None and self.max is None and self.multiple_of is None:
            raise fault("empty_dimension", "the dimension has no min, max or multiple_of")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise fault("min_above_max", f"min {self.min} is above max {self.max}", key="min")
        return self

    def unmet(self, size: str, value: int) -> Iterator[tuple[str, str]]:
        """(key, what is needed) of every bound that `value` breaks; `size` names the dimension.

        >>> list(Dimension(max=256, multiple_of=8).unmet("head_dim", 100))
        [('multiple_of', 'head_dim % 8 == 0')]
        """
        if self.min is not None and value < self.min:
            yield "min", f"{size} >= {self.min}"
        if self.max is not None and value > self.max:
            yield "max", f"{size} <= {self.max}"
        if self.multiple_of is not None and value % self.multiple_of:
            yield "multiple_of", f"{size} % {self.multiple_of} == 0"

    def describe(self, size: str) -> str:
        """The bounds as text.

        >>> Dimension(min=2, max=8).describe("tokens")
        'tokens >= 2 and tokens <= 8'
        """
        bounds = ((">=", self.min), ("<=", self.max))
        words = [f"{size} {sign} {bound}" for sign, bound in bounds if bound is not None]
        if self.multiple_of is not None:
            words.append(f"{size} % {self.multiple_of} == 0")
        return " and ".join(words)


class Match(Section):
    """Which modules the kernel is meant for, before any requirement is looked at.

    Empty means every module of the spec's op, found by structure: for attention, every transformers
    attention module that goes through the attention interface. `classes` narrows that to class names.
    """

    classes: Annotated[tuple[Identifier, ...], Field(min_length=1)] | None = None

    def accepts(self, class_name: str) -> bool:
        """Whether a module of that class is meant."""
        return self.classes is None or class_name in self.classes


class Sizes(Section):
    """Bounds on the sizes of a layer or of a call; one that is left out is not bounded. Which op has which size:
    `vocabulary.DIMENSIONS`."""

    head_dim: Dimension | None = None
    value_head_dim: Dimension | None = None
    rotary_dim: Dimension | None = None
    key_length: Dimension | None = None
    query_length: Dimension | None = None
    hidden: Dimension | None = None
    intermediate: Dimension | None = None
    num_experts: Dimension | None = None
    top_k: Dimension | None = None
    tokens: Dimension | None = None

    def dimensions(self) -> dict[str, Dimension]:
        """The bounded dimensions by name, in the order of the schema."""
        found = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in found if isinstance(value, Dimension)}


class Requires(Sizes):
    """What a layer and its inputs must satisfy for the kernel to be right.

    `dtypes` and `features` list all that the kernel covers, so what is missing there is not covered.
    A dimension, or `generations`, that is left out is not constrained.
    """

    dtypes: Annotated[tuple[DType, ...], Field(min_length=1)]
    features: tuple[StrictStr, ...] = ()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] | None = None


class Preference(Sizes):
    """One kind of call that the kernel is known to win: all that it says must hold.

    `mode` is how the call runs: `eager`, where each operation is a program of its own, or inside a `compiled` graph.
    """

    mode: Mode | None = None
    dtypes: Annotated[tuple[DType, ...], Field(min_length=1)] | None = None
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(getattr(self, name) is not None for name in type(self).model_fields):
            raise fault("empty_preference", "the preference says nothing")
        return self

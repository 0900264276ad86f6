"""`KernelSpec`: which kernel replaces which layer, and under which conditions. Schema version 1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from tpu_kernels.specs.origin import KeyPath, Origin
from tpu_kernels.specs.parts import (
    BundledSource,
    HubSource,
    Identifier,
    Match,
    PathSource,
    Preference,
    Requires,
    Section,
    Sizes,
    Source,
    Text,
)
from tpu_kernels.specs.problems import fault, spec_error
from tpu_kernels.specs.vocabulary import DIMENSIONS, FEATURES, GENERATIONS, DType, Fallback, Op

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*(?:/[a-z0-9][a-z0-9_.-]*)+")
_HUB_KERNELS = Path(__file__).resolve().parents[1] / "hub_kernels"


def _tune_key(value: str) -> str:
    known = ("default", "small", *GENERATIONS)
    if value not in known:
        raise fault("unknown_generation", f"{value!r} is no TPU generation", word=value, known=known)
    return value


TuneKey = Annotated[StrictStr, AfterValidator(_tune_key)]
Tuning = Mapping[Identifier, StrictInt]
Tolerance = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class KernelSpec(Section):
    """One kernel: where it comes from, what it replaces, what it requires, how it is tuned.

    Read from YAML with `tpu_kernels.load_spec`, or built here. Immutable. Raises SpecError.

    name         `OP/NAME`, unique in a registry
    op           kind of layer: attention, mlp, norm, rotary or experts
    source       HubSource, BundledSource or PathSource
    function     name of a function of the kernel's module, or
    layer        name of a class of its `layers` module (exactly one of the two)
    match        which modules are meant
    requires     dtypes, features, TPU generations and sizes that the kernel covers
    prefer       the calls that the kernel is known to win; with policy "auto" it takes those alone. None: all of them
    tune         keyword arguments for the kernel: `default`, per TPU generation, and `small`, which is laid over them
                 where a compile runs out of VMEM
    fallback     what runs where the kernel cannot: auto, sdpa (attention only) or eager (the module's own)
    tolerance    largest absolute error against the op's float32 reference, per dtype
    """

    schema_version: Annotated[StrictInt, Field(ge=1, le=1)] = 1
    name: Text
    op: Op
    description: Text
    source: Source
    function: Identifier | None = None
    layer: Identifier | None = None
    match: Match = Match()
    requires: Requires
    prefer: tuple[Preference, ...] | None = None
    tune: Mapping[TuneKey, Tuning] = Field(default_factory=dict)
    fallback: Fallback = "auto"
    tolerance: Mapping[DType, Tolerance] = Field(default_factory=dict)

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], origin: Origin) -> Self:
        """A spec from plain data that was read at `origin`. Raises SpecError."""
        try:
            spec = cls.model_validate(data)
        except ValidationError as error:
            raise spec_error(error, cls, data, origin) from None
        spec._origin = origin
        return spec

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise fault("bad_name", f"{self.name!r} is not a spec name", key="name")
        if self.name.split("/")[0] != self.op:
            raise fault("name_without_op", f"the name {self.name!r} does not begin with its op", key="name")
        if self.function is not None and self.layer is not None:
            raise fault("function_and_layer", "both a function and a layer", key="layer")
        if self.function is None and self.layer is None:
            raise fault("no_entry", "neither a function nor a layer")
        for position, feature in enumerate(self.requires.features):
            if feature not in FEATURES[self.op]:
                raise fault(
                    "unknown_feature",
                    f"{feature!r} is not a feature of {self.op} kernels",
                    key=f"requires.features.{position}",
                    word=feature,
                    known=FEATURES[self.op],
                )
        self._check_sizes("requires", self.requires)
        for position, preference in enumerate(self.prefer or ()):
            self._check_sizes(f"prefer.{position}", preference)
        if self.fallback == "sdpa" and self.op != "attention":
            raise fault("sdpa_without_attention", f"no SDPA for {self.op} layers", key="fallback")
        for dtype in self.tolerance:
            if dtype not in self.requires.dtypes:
                message = f"a tolerance for {dtype}, which the kernel does not take"
                raise fault("idle_tolerance", message, key=f"tolerance.{dtype}")
        return self

    def _check_sizes(self, section: str, sizes: Sizes) -> None:
        for size in sizes.dimensions():
            if size not in DIMENSIONS[self.op]:
                raise fault(
                    "unknown_dimension",
                    f"{size!r} is not a size of {self.op} layers",
                    key=f"{section}.{size}",
                    word=size,
                    known=DIMENSIONS[self.op],
                )

    def __hash__(self) -> int:
        return hash((self.name, self.op))

    @property
    def origin(self) -> str:
        """The file that the spec was read from, as messages show it, or `<python>`."""
        return self._origin.label

    @property
    def file(self) -> Path | None:
        """Absolute path of that file, or None."""
        return self._origin.file

    def line_of(self, key: str | KeyPath) -> int | None:
        """Line of a key such as `requires.head_dim.multiple_of`; see `Origin.line_of`."""
        return self._origin.line_of(key)

    def cite(self, key: str | KeyPath) -> str:
        """`FILE:LINE` of such a key, to stand behind a requirement in a message, or `<python>`."""
        return self._origin.cite(key)

    @property
    def entry(self) -> str:
        """Name of the function or of the layer class."""
        return self.function or self.layer or ""

    @property
    def kernel_folder(self) -> Path | None:
        """Absolute folder of a bundled or local kernel repository; None for one on the Hub."""
        match self.source:
            case BundledSource(name=name):
                return _HUB_KERNELS / name
            case PathSource(path=path):
                base = Path.cwd() if self.file is None else self.file.parent
                return base / Path(path).expanduser()
            case HubSource():
                return None

    def tuning(self, generation: str | None = None) -> dict[str, int]:
        """Keyword arguments for the kernel on a TPU generation: `default`, overlaid by its own."""
        return {**self.tune.get("default", {}), **self.tune.get(generation or "default", {})}

    def small_tuning(self, generation: str | None = None) -> dict[str, int]:
        """The same, overlaid by `small`: for a call that ran out of VMEM."""
        return {**self.tuning(generation), **self.tune.get("small", {})}

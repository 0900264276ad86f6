"""What `tpu-kernels cost` is asked for: kernels by their specs, or a model; and where the answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from tpu_kernels.errors import SpecError, explain
from tpu_kernels.lab.cost.compare import Comparison, chosen_cases, compare
from tpu_kernels.lab.cost.report import as_json, print_costs, write_page, write_plot
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.registry import find_spec, load_registry
from tpu_kernels.specs import KernelSpec


@dataclass
class Request:
    """The options of the command; None is what suits the subject."""

    targets: tuple[str, ...] = GENERATIONS
    """Generations ("v5e") and topologies ("v5e:1x1")."""
    cases: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    batch: int | None = None
    max_len: int | None = None
    length: int | None = None


class Report(Protocol):
    """Costs that can be shown: of a kernel, or of a model."""

    def show(self, console: Console) -> None:
        """As tables on the terminal."""

    def json(self) -> str:
        """As one JSON document."""

    def plot(self, path: Path) -> None:
        """As a picture, in the format of the suffix of `path`."""

    def page(self, path: Path) -> None:
        """As one self-contained HTML page."""


@dataclass(frozen=True)
class KernelReport:
    """The costs of a spec's kernel on some cases."""

    spec: KernelSpec
    comparisons: Sequence[Comparison]

    def show(self, console: Console) -> None:
        print_costs(self.spec, self.comparisons, console)

    def json(self) -> str:
        return as_json(self.comparisons)

    def plot(self, path: Path) -> None:
        write_plot(self.comparisons, path)

    def page(self, path: Path) -> None:
        write_page(self.spec, self.comparisons, path)


def cost_report(subject: str | None, request: Request) -> Report:
    """The costs of `subject`: a spec by its name, with or without the op, or by its YAML file; any other is a model.

    None is the bundled attention kernel. Raises as `compare` does, and SpecError for a file that is no spec.
    """
    spec = find_spec(subject) if subject else load_registry().get("attention/static-attention")
    if spec is None:
        return _model_report(str(subject), request)
    if spec.op != "attention":
        raise SpecError(
            explain(
                f"The costs of `{spec.name}` cannot be estimated.",
                needs="a kernel of an op that has named cases: attention",
                got=f"op: {spec.op}",
            )
        )
    return KernelReport(spec, compare(spec, chosen_cases(request.cases), request.targets, **_sizes(request)))


def _sizes(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ("dtype", "batch", "max_len", "length")}


def _model_report(model: str, request: Request) -> Report:
    from tpu_kernels.lab.cost.model_cost import model_costs
    from tpu_kernels.lab.cost.model_report import ModelReport

    return ModelReport(model, list(model_costs(model, request)))

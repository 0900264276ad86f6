"""What `tpu-kernels cost` is asked for: kernels by their specs, or a model; and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from tpu_kernels.lab.cost.compare import compare
from tpu_kernels.lab.cost.report import KernelCosts, as_json, print_costs, print_notes, write_page, write_plot
from tpu_kernels.lab.kernel_cases import Amount, bundled_kernels, cases_of_each
from tpu_kernels.lab.targets import GENERATIONS
from tpu_kernels.registry import find_spec
from tpu_kernels.specs import KernelSpec

Say = Callable[[str], None]


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
    tokens: int | None = None
    all_cases: bool = False
    """Of a kernel: every named case, not a few."""
    tp_size: int = 1
    """Of a model: chips that it is divided over."""


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
    """The costs of some kernels."""

    kernels: Sequence[KernelCosts]

    def show(self, console: Console) -> None:
        print_costs(self.kernels, console)
        print_notes(console)

    def json(self) -> str:
        return as_json(self.kernels)

    def plot(self, path: Path) -> None:
        write_plot(self.kernels, path)

    def page(self, path: Path) -> None:
        write_page(self.kernels, path)


def cost_report(
    subject: str | None, request: Request, *, say: Say = lambda _: None, console: Console | None = None
) -> Report:
    """The costs of `subject`: a spec by its name, with or without the op, or by its YAML file; any other is a model.

    None is every bundled kernel. `say` is told what runs. On `console` the costs of each kernel are shown as soon as
    they are there. Raises as `compare` does, and SpecError for a file that is no spec.
    """
    spec = find_spec(subject) if subject else None
    if subject and spec is None:
        report = _model_report(subject, request)
        if console is not None:
            report.show(console)
        return report
    found = []
    for costs in kernel_costs(bundled_kernels() if spec is None else [spec], request, say):
        found.append(costs)
        if console is not None:
            print_costs([costs], console)
    if console is not None:
        print_notes(console)
    return KernelReport(found)


def kernel_costs(specs: Sequence[KernelSpec], request: Request, say: Say = lambda _: None) -> Iterator[KernelCosts]:
    """The costs of each kernel, as they are done."""
    amount: Amount = "all" if request.all_cases else "few"
    for spec, cases in cases_of_each(specs, request.cases, amount):
        yield spec, compare(spec, cases, request.targets, say=say, **_sizes(request))


def _sizes(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ("dtype", "batch", "max_len", "length", "tokens")}


def _model_report(model: str, request: Request) -> Report:
    from tpu_kernels.lab.cost.model_cost import model_costs
    from tpu_kernels.lab.cost.model_report import ModelReport

    return ModelReport(model, list(model_costs(model, request)))

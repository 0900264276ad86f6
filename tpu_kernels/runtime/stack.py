"""Do the installed packages fit together? Asked of their metadata alone, so nothing heavy is imported."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tpu_kernels._logging import logger
from tpu_kernels.errors import StackError, explain

SKIP_VARIABLE: Final = "TPU_KERNELS_SKIP_STACK_CHECK"

# The ranges of pyproject.toml, which a checkout that was never installed cannot ask for.
OUR_RANGES: Final = {
    "torch": ">=2.13,<2.14",
    "torch_tpu": ">=0.2,<0.3",
    "transformers": ">=5.22,<5.23",
    "kernels": ">=0.17.2,<0.18",
    "huggingface_hub": ">=2.4,<3",
    "jax": ">=0.10.2,<0.11",
    "jaxlib": "",
    "accelerate": ">=1.10",
    "libtpu": ">=0.0.52,<0.0.53",
}
# Needed on a machine with a TPU, and for compiling ahead of time; not for everything else.
_OPTIONAL: Final = frozenset({"libtpu"})
# Packages whose own demands on the others count, with the extra that says what we use them with.
_DEMANDING: Final = {
    "transformers": "kernels",
    "torch_tpu": None,
    "jax": None,
    "kernels": None,
    "accelerate": None,
}

_NAME: Final = re.compile(r"[\w.-]*")

Status = Literal["ok", "info", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what was looked at, what was found, what is needed, and what to do about it."""

    name: str
    status: Status
    found: str
    needs: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Package:
    """An installed distribution: its version and its requirements as PEP 508 texts."""

    version: str
    requires: tuple[str, ...] = ()


Lookup = Callable[[str], Package | None]


def installed(name: str) -> Package | None:
    """The installed distribution of that name, or None."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Package(found.version, tuple(found.requires or ()))


def version_findings(lookup: Lookup = installed) -> list[Finding]:
    """One finding per package of the stack: `broken` if it is missing or outside a range that is demanded.

    `lookup` answers for a distribution's name what is installed.
    """
    demands = _all_demands(lookup)
    return [_finding(name, lookup(name), demands[name]) for name in OUR_RANGES]


def check_stack(lookup: Lookup = installed) -> None:
    """Raise StackError if the installed versions do not work together; costs a few milliseconds.

    TPU_KERNELS_SKIP_STACK_CHECK=1 turns the error into a warning, to try other versions at one's own risk.
    """
    broken = [finding for finding in version_findings(lookup) if finding.status == "broken"]
    if not broken:
        return
    message = explain(
        "the installed packages do not work together.",
        needs="\n".join(f"{finding.name} {finding.needs}" for finding in broken),
        got="\n".join(f"{finding.name} {finding.found}" for finding in broken),
        next_step="\n".join((*(finding.remedy for finding in broken), "or see `tpu-kernels doctor`.")),
    )
    if os.environ.get(SKIP_VARIABLE, "0") not in ("", "0"):
        logger.warning("%s\n%s is set: going on all the same.", message, SKIP_VARIABLE)
        return
    raise StackError(message)


def _finding(name: str, package: Package | None, demands: list[tuple[str, str]]) -> Finding:
    needs = "; ".join(f"{wanted} ({who})" for who, wanted in demands) or "any version"
    together = ",".join(wanted for _, wanted in demands)
    install = f'pip install "{name.replace("_", "-")}{together}"'
    if package is None:
        if name in _OPTIONAL:
            remedy = 'pip install "tpu-kernels[tpu]" on a machine with a TPU, or to compile ahead of time.'
            return Finding(name, "info", "not installed", needs, remedy)
        return Finding(name, "broken", "not installed", needs, install)
    unmet = [
        (who, wanted) for who, wanted in demands if not SpecifierSet(wanted).contains(package.version, prereleases=True)
    ]
    if not unmet:
        return Finding(name, "ok", package.version, needs)
    refusing = "; ".join(f"{wanted} ({who})" for who, wanted in unmet)
    return Finding(name, "broken", package.version, refusing, _remedy(name, unmet, install))


def _remedy(name: str, unmet: list[tuple[str, str]], install: str) -> str:
    if name == "kernels" and any(who.startswith("transformers ") for who, _ in unmet):
        # Otherwise transformers turns its kernel decorators into stubs without a word.
        return f'pip install "transformers{OUR_RANGES["transformers"]}" "kernels{OUR_RANGES["kernels"]}"'
    return install


def _all_demands(lookup: Lookup) -> dict[str, list[tuple[str, str]]]:
    """For each package of the stack, (who, version range) of everybody who has a say on its version."""
    demands = {name: [("tpu-kernels", wanted)] if wanted else [] for name, wanted in OUR_RANGES.items()}
    names = {_canonical(name): name for name in OUR_RANGES}
    for demander, extra in _DEMANDING.items():
        package = lookup(demander)
        if package is None:
            continue
        for text in package.requires:
            name = names.get(_canonical(_NAME.match(text)[0]))  # type: ignore[index]
            if name is None:
                continue
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""})
            if applies and requirement.specifier:
                demands[name].append((f"{demander} {package.version}", str(requirement.specifier)))
    return demands


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

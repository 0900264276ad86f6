"""What is read from the folder of text dumps for which `processes.dumping_environment` asks libtpu."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpu_kernels.lab.cost.schedule import Schedule, parse_schedule
from tpu_kernels.lab.cost.utilization import Utilization, parse_utilization

SCHEDULE: Final = "packed-bundles-post-ra"
UTILIZATION: Final = "pre-delay_hlo-static-per-bundle-utilization"
_FILE: Final = re.compile(rf"^\d+-(?P<kernel>.+)-\d+-(?P<label>{SCHEDULE}|{UTILIZATION})\.txt$")
_NOT_KERNELS: Final = ("<", "TLP")  # initialization and finalization, and the program that calls the kernels


@dataclass(frozen=True)
class KernelDump:
    """What libtpu said of one kernel or fusion; `name` is that of its instruction in the optimized HLO."""

    name: str
    schedule: Schedule
    utilization: Utilization


def read_dumps(folder: Path) -> dict[str, KernelDump]:
    """All kernels and fusions dumped into `folder`, by name; the last one where a name came twice."""
    paths: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.glob("*.txt")):
        found = _FILE.match(path.name)
        if found and not found["kernel"].startswith(_NOT_KERNELS) and "schedule-analysis" not in path.name:
            paths[found["kernel"], found["label"]] = path
    return {
        kernel: KernelDump(
            kernel,
            parse_schedule(path.read_text()),
            parse_utilization(paths[kernel, UTILIZATION].read_text()),
        )
        for (kernel, label), path in paths.items()
        if label == SCHEDULE and (kernel, UTILIZATION) in paths
    }

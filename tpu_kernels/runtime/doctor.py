"""What `tpu-kernels doctor` looks at. Every look answers with findings and none raises."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpu_kernels.emulator.chips import SYSROOT_VARIABLE, find_tpu_chips
from tpu_kernels.errors import TpuKernelsError
from tpu_kernels.registry import load_registry
from tpu_kernels.runtime.stack import Finding, Lookup, Status, installed, version_findings

_PROBE_SECONDS: Final = 180
_HUB_SECONDS: Final = 3
_OLDEST_PYTHON: Final = (3, 11)
_VERBATIM: Final = 300

# Runs in a process of its own: importing torch may crash, hang, or take the only TPU.
_PROBE: Final = """
import json, warnings
answer = {}
import torch
answer["torch"] = torch.__version__
answer["torch.tpu"] = hasattr(torch, "tpu")
answer["torch.backends.tpu"] = hasattr(torch.backends, "tpu")
accelerator = torch.accelerator.current_accelerator()
answer["accelerator"] = accelerator.type if accelerator else None
import torch_tpu
from torch_tpu import _tcmalloc_check
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    _tcmalloc_check.check_tcmalloc()
answer["tcmalloc"] = not caught
from tpu_kernels.runtime.bridge import announce_backend
announce_backend()
from kernels.backends import _backend
answer["kernels backend"] = _backend().name
from transformers.utils import is_kernels_available
answer["transformers uses kernels"] = bool(is_kernels_available())
print("ANSWER" + json.dumps(answer))
"""


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `ok` unless one of them is `broken`."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.status != "broken" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """`{"ok": ..., "findings": [...]}`, for JSON."""
        return {"ok": self.ok, "findings": [finding.as_dict() for finding in self.findings]}


def diagnose(lookup: Lookup = installed, root: Path | None = None) -> Diagnosis:
    """Look at everything that must fit for kernels to run: packages, torch, TPU, Hub, specs.

    `lookup` answers which version of a package is installed; below `root` (TPU_KERNELS_SYSROOT, else /) lie
    `sys` and `dev`.
    """
    findings = [_python(), *version_findings(lookup)]
    chips = list(_chips(root or Path(os.environ.get(SYSROOT_VARIABLE, "/"))))
    on_tpu = any(finding.status == "ok" for finding in chips)
    findings += chips
    findings += _torch(lookup, on_tpu)
    findings.append(_emulator(lookup, on_tpu))
    findings.append(_hub())
    findings.append(_specs())
    if os.environ.get("TPU_KERNELS_DISABLE", "0") not in ("", "0"):
        remedy = "unset TPU_KERNELS_DISABLE to let enable_tpu_kernels do its work."
        findings.append(Finding("TPU_KERNELS_DISABLE", "warning", "set", remedy=remedy))
    return Diagnosis(tuple(findings))


def _python() -> Finding:
    fits = sys.version_info[:2] >= _OLDEST_PYTHON
    needs = f">={'.'.join(map(str, _OLDEST_PYTHON))} (tpu-kernels)"
    remedy = "" if fits else "install a newer Python."
    return Finding("python", "ok" if fits else "broken", platform.python_version(), needs, remedy)


def _chips(root: Path) -> Iterator[Finding]:
    chips = find_tpu_chips(root)
    if not chips:
        nodes = [*root.glob("dev/accel[0-9]*"), *root.glob("dev/vfio/[0-9]*")]
        if nodes:
            found = f"device nodes ({', '.join(str(node) for node in nodes)}) but no TPU on the PCI bus"
            remedy = "in a container, mount the host's /sys, or run it with --privileged."
            yield Finding("TPU chips", "warning", found, remedy=remedy)
            return
        yield Finding("TPU chips", "info", "none: kernels run in the emulator on this machine")
        return
    found = ", ".join(f"{chip.generation} at {chip.node}" for chip in chips)
    closed = [chip.node for chip in chips if not os.access(root / chip.node.lstrip("/"), os.R_OK | os.W_OK)]
    if closed:
        remedy = f"run as a user who may open {', '.join(closed)}, for example as root."
        yield Finding("TPU chips", "broken", f"{found}; no permission", remedy=remedy)
        return
    yield Finding("TPU chips", "ok", found)


def _torch(lookup: Lookup, on_tpu: bool) -> Iterator[Finding]:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        remedy = "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import torch_tpu in the program."
        status: Status = "broken" if on_tpu else "warning"
        yield Finding("torch_tpu autoload", status, "switched off by the environment", remedy=remedy)
    if any(lookup(name) is None for name in ("torch", "torch_tpu", "transformers", "kernels")):
        remedy = "install the missing packages first; see above."
        yield Finding("torch", "broken", "not tried: packages are missing", remedy=remedy)
        return
    answer, trouble = _probe()
    if answer is None:
        remedy = 'run `python -c "import torch, torch_tpu, kernels, transformers"` to see what fails.'
        yield Finding("torch", "broken", f"does not import: {trouble}", remedy=remedy)
        return
    yield from _probe_findings(answer, on_tpu)


def _probe() -> tuple[dict[str, Any] | None, str]:
    """What a fresh process finds after importing torch, or None and why it found nothing."""
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_PROBE_SECONDS} s"
    for line in run.stdout.splitlines():
        if line.startswith("ANSWER"):
            answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
            return answer, ""
    last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "")
    return None, f"{last.strip()[:_VERBATIM]} (exit code {run.returncode})"


def _probe_findings(answer: dict[str, Any], on_tpu: bool) -> Iterator[Finding]:
    if answer["torch.backends.tpu"]:
        yield Finding("torch.backends.tpu", "ok", "set by torch_tpu")
    elif answer["kernels backend"] == "tpu":
        yield Finding("torch.backends.tpu", "ok", "not set by torch_tpu; tpu-kernels sets it, so `kernels` sees a TPU")
    else:
        found = f"not set, and `kernels` takes this for a {answer['kernels backend']} machine"
        remedy = "install the versions of torch_tpu and kernels named above."
        yield Finding("torch.backends.tpu", "broken", found, remedy=remedy)
    if not answer["transformers uses kernels"]:
        found = "refuses the installed version of kernels"
        remedy = "install the versions of transformers and kernels named above."
        yield Finding("transformers' kernels", "broken", found, remedy=remedy)
    if on_tpu and answer["accelerator"] != "tpu":
        found = f"torch's accelerator is {answer['accelerator']}, though there is a TPU"
        remedy = "see that `import torch_tpu` works and that no other process holds the TPU."
        yield Finding("torch device", "broken", found, remedy=remedy)
    elif on_tpu:
        yield Finding("torch device", "ok", "tpu")
    if answer["tcmalloc"]:
        yield Finding("tcmalloc", "ok", "loaded")
    else:
        remedy = "apt-get install libtcmalloc-minimal4; start Python with LD_PRELOAD=libtcmalloc_minimal.so.4"
        found = "not loaded: torch_tpu is slower on the host" if on_tpu else "not loaded (matters on a TPU only)"
        yield Finding("tcmalloc", "warning" if on_tpu else "info", found, remedy=remedy if on_tpu else "")


def _emulator(lookup: Lookup, on_tpu: bool) -> Finding:
    missing = [name for name in ("lammps-jax-pjrt-cpu", "pypjrt") if lookup(name) is None]
    if not missing:
        return Finding("emulator", "ok", "installed")
    status: Status = "info" if on_tpu else "warning"
    return Finding(
        "emulator",
        status,
        f"{' and '.join(missing)} not installed",
        remedy='pip install "tpu-kernels[emulator]"',
    )


def _hub() -> Finding:
    try:
        from huggingface_hub import constants
    except Exception as error:
        remedy = "install huggingface_hub anew."
        return Finding("Hub", "broken", f"huggingface_hub does not import: {error}", remedy=remedy)
    if constants.HF_HUB_OFFLINE:
        return Finding("Hub", "info", "offline by HF_HUB_OFFLINE: only cached and bundled kernels load")
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()
    except urllib.error.HTTPError:
        return Finding("Hub", "ok", f"online ({constants.ENDPOINT})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        found = f"{constants.ENDPOINT} cannot be reached: {reason}"
        remedy = "check the network, or set HF_HUB_OFFLINE=1 to use cached and bundled kernels without waiting."
        return Finding("Hub", "warning", found, remedy=remedy)
    return Finding("Hub", "ok", f"online ({constants.ENDPOINT})")


def _specs() -> Finding:
    try:
        registry = load_registry()
    except TpuKernelsError as error:
        return Finding("kernel specs", "broken", str(error), remedy="correct the spec, or take it away.")
    missing = [spec for spec in registry if spec.kernel_folder is not None and not spec.kernel_folder.is_dir()]
    if missing:
        found = ", ".join(f"{spec.name}: no folder {spec.kernel_folder}" for spec in missing)
        return Finding("kernel specs", "broken", found, remedy="install tpu-kernels again, or correct the spec.")
    return Finding("kernel specs", "ok", f"{len(registry)} found")

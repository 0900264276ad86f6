"""Loading kernels through the `kernels` library, with what was loaded on record."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels
import torch
from huggingface_hub import constants
from kernels.importer import get_loaded_kernels

from tpu_kernels.errors import KernelLoadError, explain
from tpu_kernels.runtime.bridge import announce_backend
from tpu_kernels.specs import KernelSpec
from tpu_kernels.specs.parts import HubSource

_VARIANT = Path("build") / "torch-tpu"


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel's entry point and where it came from. `digest` is of the files of the build that was imported."""

    spec: KernelSpec
    entry: Callable[..., torch.Tensor]
    module: ModuleType
    repo: str
    revision: str
    digest: str

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedKernel:
        return self


def _refuse(spec: KernelSpec, what: str, **parts: str) -> KernelLoadError:
    return KernelLoadError(explain(f"kernel `{spec.name}` ({spec.cite('source')}): {what}", **parts))


def _checked_metadata(spec: KernelSpec, variant: Path) -> Any:
    """Metadata of the build in `variant`, after its files were checked against the digest in it."""
    from kernels._rust import Digest, Metadata

    if not (variant / "metadata.json").is_file():
        raise _refuse(
            spec,
            "no TPU build.",
            needs=f"{variant / 'metadata.json'}",
            got="no such file" if variant.parent.is_dir() else f"no folder {variant.parent}",
            next_step="build the `torch-tpu` variant of the kernel, or correct `source`.",
        )
    metadata = Metadata.read_from_file(variant / "metadata.json")
    if metadata.digest is None:
        raise _refuse(spec, "its metadata.json has no digest.", next_step="rebuild the kernel's `torch-tpu` variant.")
    try:
        metadata.digest.validate(Digest.hash_variant(metadata.digest.algorithm, variant))
    except Exception as error:
        raise _refuse(
            spec,
            "its files are not those that its digest was made of; nothing was imported.",
            got=str(error),
            next_step=f"restore the files under {variant}, or rebuild the variant.",
        ) from error
    return metadata


def _digest(variant: Path) -> str:
    metadata = json.loads((variant / "metadata.json").read_text())
    files = json.dumps(metadata.get("digest", {}), sort_keys=True)
    return "sha256:" + hashlib.sha256(files.encode()).hexdigest()[:16]


def _load_folder(spec: KernelSpec, folder: Path) -> tuple[ModuleType, str, str, str]:
    metadata = _checked_metadata(spec, folder / _VARIANT)
    module = kernels.get_local_kernel(folder)
    return module, str(spec.source), f"v{metadata.version}", _digest(folder / _VARIANT)


def _load_hub(spec: KernelSpec, source: HubSource) -> tuple[ModuleType, str, str, str]:
    """Download, check trust and digest, and only then import, all by the `kernels` library."""
    if f"{source.repo}=" in os.environ.get("LOCAL_KERNELS", ""):
        raise _refuse(
            spec,
            f"LOCAL_KERNELS redirects {source.repo}, past its pin and its digest.",
            next_step="unset LOCAL_KERNELS, or write a spec whose source is that folder (`kind: path`).",
        )
    pin: dict[str, Any] = {
        "revision": source.revision,
        "version": source.version,
        "trust_remote_code": source.trust_remote_code,
    }
    variant = kernels.install_kernel(source.repo, local_files_only=constants.HF_HUB_OFFLINE, **pin)
    _checked_metadata(spec, variant)
    module = kernels.get_kernel(source.repo, **pin)
    if not Path(module.__file__ or "").is_relative_to(variant):
        raise _refuse(spec, "it moved on the Hub while it was being loaded.", next_step="try again, or pin a revision.")
    loaded = next((kernel for kernel in get_loaded_kernels() if kernel.module is module), None)
    revision = loaded.repo_info.revision if loaded is not None and loaded.repo_info is not None else ""
    return module, source.repo, revision or str(source.revision or f"v{source.version}"), _digest(variant)


def load_kernel(spec: KernelSpec) -> LoadedKernel:
    """Import the kernel that `spec` names, through the `kernels` library.

    Raises KernelLoadError where it cannot be found, trusted, verified or imported, or lacks the entry point.
    """
    announce_backend()
    folder = spec.kernel_folder
    try:
        if isinstance(spec.source, HubSource):
            module, repo, revision, digest = _load_hub(spec, spec.source)
        else:
            module, repo, revision, digest = _load_folder(spec, folder or Path())
    except KernelLoadError:
        raise
    except Exception as error:
        raise _refuse(
            spec,
            "the kernels library could not load it.",
            got=f"{type(error).__name__}: {error}",
            next_step="see `tpu-kernels doctor`; check `source` and, offline, the Hub cache.",
        ) from error
    home = getattr(module, "layers", None) if spec.layer else module
    entry = getattr(home, spec.entry, None)
    if spec.layer and isinstance(entry, type):
        entry = entry()
    if not callable(entry):
        public = sorted(getattr(module, "__all__", ()))
        raise _refuse(
            spec,
            f"the module has no {'layer' if spec.layer else 'function'} `{spec.entry}`.",
            needs=spec.cite("layer" if spec.layer else "function"),
            got=f"{', '.join(public) or 'no public names'} in {repo}",
            next_step="correct the name in the spec.",
        )
    _check_tuning(spec, entry)
    return LoadedKernel(spec, entry, module, repo, revision, digest)


def _check_tuning(spec: KernelSpec, entry: Callable[..., Any]) -> None:
    """Every keyword under `tune` is an argument of the entry point. Raises KernelLoadError."""
    function = entry.forward if isinstance(entry, torch.nn.Module) else entry
    parameters = inspect.signature(function).parameters
    for table, keywords in spec.tune.items():
        for name in keywords:
            if name not in parameters:
                raise _refuse(
                    spec,
                    f"`{spec.entry}` takes no argument `{name}`.",
                    needs=f"keywords of its own under tune.{table}   ({spec.cite(('tune', table, name))})",
                    got=f"arguments {', '.join(parameters)}",
                    next_step="correct the name in the spec.",
                )

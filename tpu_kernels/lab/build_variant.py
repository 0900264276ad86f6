"""Builds the `torch-tpu` variant of a Hub kernel repository from its sources.

A TPU kernel is Python alone, so its variant is the package's files beside a `metadata.json`. The
build depends on the sources and on nothing else: no clock, no git state, no machine.

    python -m tpu_kernels.lab.build_variant tpu_kernels/hub_kernels/static-attention [--check]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from tpu_kernels.errors import KernelLoadError, explain

VARIANT = "torch-tpu"


def variant_files(repo: Path) -> dict[str, bytes]:
    """Content of every file of the variant of the kernel repository `repo`, by path inside the variant.

    Raises:
        KernelLoadError: `build.toml` is missing or incomplete, or the package it names is.
    """
    general = _general(repo)
    name = str(general["name"])
    package = repo / "torch-ext" / name.replace("-", "_")
    if not (package / "__init__.py").is_file():
        raise KernelLoadError(
            explain(
                f"The kernel repository `{repo}` has no package to build.",
                needs=f"a file {package / '__init__.py'}",
                next_step="name the folder under torch-ext/ after `name` in build.toml",
            )
        )
    files = {
        path.relative_to(package).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files["metadata.json"] = _metadata(general, files)
    return files


def build_variant(repo: Path) -> Path:
    """Writes `build/torch-tpu` of `repo` anew and returns its path. Raises as `variant_files` does."""
    files = variant_files(repo)
    target = repo / "build" / VARIANT
    if target.exists():
        shutil.rmtree(target)
    for name, content in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return target


def differences(repo: Path) -> list[str]:
    """What differs between the committed variant of `repo` and the one its sources make; empty if nothing."""
    wanted = variant_files(repo)
    target = repo / "build" / VARIANT
    present = {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    lines = [f"missing: {name}" for name in sorted(wanted.keys() - present.keys())]
    lines += [f"unexpected: {name}" for name in sorted(present.keys() - wanted.keys())]
    common = sorted(wanted.keys() & present.keys())
    lines += [f"differs: {name}" for name in common if present[name] != wanted[name]]
    return lines


def _general(repo: Path) -> dict[str, Any]:
    path = repo / "build.toml"
    if not path.is_file():
        raise KernelLoadError(
            explain(f"`{repo}` is no kernel repository.", needs=f"a file {path}", next_step="check the path")
        )
    general = tomllib.loads(path.read_text()).get("general", {})
    missing = [key for key in ("name", "version", "license", "backends") if key not in general]
    if missing or "tpu" not in general["backends"]:
        raise KernelLoadError(
            explain(
                f"`{path}` does not describe a TPU kernel.",
                needs='name, version, license and backends = ["tpu"] under [general]',
                got=f"missing: {', '.join(missing)}" if missing else f"backends = {general['backends']}",
            )
        )
    return dict(general)


def _metadata(general: dict[str, Any], files: dict[str, bytes]) -> bytes:
    name, version = str(general["name"]), int(general["version"])
    digests = {path: hashlib.sha256(content).digest() for path, content in sorted(files.items())}
    whole = hashlib.sha256(f"{name} {version}".encode())
    for path, digest in digests.items():
        whole.update(path.encode() + b"\0" + digest)
    metadata = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_tpu_{whole.hexdigest()[:12]}",
        "version": version,
        "license": general["license"],
        "python-depends": [],  # required by kernels, which refuses "jax" for TPUs
        "backend": {"type": "tpu"},
        "digest": {
            "algorithm": "sha256",
            "files": {path: base64.b64encode(digest).decode() for path, digest in digests.items()},
        },
    }
    return (json.dumps(metadata, indent=2) + "\n").encode()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tpu_kernels.lab.build_variant", description=__doc__)
    parser.add_argument("repo", type=Path, help="folder with build.toml")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse_args(argv)
    if not options.check:
        print(build_variant(options.repo))
        return 0
    found = differences(options.repo)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

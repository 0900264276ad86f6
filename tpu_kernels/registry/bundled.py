"""Where the specs that ship with this package lie: in a checkout, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

from tpu_kernels.errors import SpecError, explain

_PACKAGE = Path(__file__).resolve().parents[1]


def bundled_specs_folder(package: Path = _PACKAGE) -> Path:
    """The folder of bundled specs for the package that lies at `package`.

    An installed wheel carries them inside the package, a checkout has them beside it. Raises SpecError where
    there are none.
    """
    candidates = (package / "_bundled_specs", package.parent / "kernel_specs")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise SpecError(
        explain(
            "the kernel specs that ship with tpu-kernels are missing.",
            needs=" or ".join(str(folder) for folder in candidates),
            next_step="install tpu-kernels again, or clone the whole repository.",
        )
    )

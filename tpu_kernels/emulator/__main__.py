"""`python -m tpu_kernels.emulator [--force] [-m] SCRIPT [ARGS...]`."""

from __future__ import annotations

import sys

from tpu_kernels.emulator.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

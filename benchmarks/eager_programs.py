"""Programs that run for one decoded token without compilation: plain, attention kernels alone, every kernel.

    python -m benchmarks.eager_programs [--model CONFIG]

A small model of the same architecture with 2 layers decodes with `disable_compile=True` on the emulated TPU, where
each operation is a program of its own, as on a TPU. Counts, no times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.executables import executables_per_token
from benchmarks.show import print_rows

FLOWS = {"plain": "plain", "attention kernels": "attention", "every kernel (auto)": "tpu-kernels"}
MODEL = str(Path(__file__).parent / "configs" / "qwen3-0.6b.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    options = parser.parse_args()
    counts = {flow: executables_per_token(options.model, name, "eager") for flow, name in FLOWS.items()}
    print(f"{Path(options.model).stem}, 2 layers: programs per eagerly decoded token")
    print_rows(
        [{"flow": flow, "programs": count, "of plain": count / counts["plain"]} for flow, count in counts.items()]
    )


if __name__ == "__main__":
    main()

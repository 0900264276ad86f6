"""`tpu-kernels generate`: the bundled model continues prompts, in a process of its own."""

from __future__ import annotations

import re

from tests.emulator.processes import python
from tpu_kernels.demo import demo_model_path

MAIN = ("-c", "from tpu_kernels.cli.main import main; main()")


def test_generate_with_warm_up_and_report() -> None:
    folder = str(demo_model_path())
    command = [*MAIN, "generate", folder, "--dtype", "float32", "--max-new-tokens", "8", "--emulate"]
    done = python(*command, "--prompt", "The value of the expression is", "--warm-up", "--report", timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The value of the expression is stored in the current function.")
    assert re.search(
        r"batch 1, \d+ tokens: [\d.]+ s \(prefill batch 1 tokens 256 cache 256: [\d.]+ s, decode", done.stderr
    )
    assert re.search(r"^1 x 8 new tokens in [\d.]+ s$", done.stderr, re.MULTILINE)
    assert "29 of 29 layers swapped" in done.stderr and "programs: 2 for batch 1, cache 256" in done.stderr


def test_mistakes_are_said_before_anything_is_loaded(tmp_path: object) -> None:
    for options, message in (
        (("--prompt", ""), "a prompt is empty"),
        (("--prompt", "x", "--spec", "nowhere.yaml"), "nowhere.yaml"),
        (("--prompt", "x", "--emulate"), "cannot be loaded"),
    ):
        done = python(*MAIN, "generate", str(tmp_path), *options, HF_HUB_OFFLINE="1")
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_without_a_tpu(tmp_path: object) -> None:
    done = python(*MAIN, "generate", "x", "--prompt", "y", TPU_KERNELS_SYSROOT=str(tmp_path))
    assert done.returncode == 1
    assert "there is no TPU on this machine" in done.stderr and "--emulate" in done.stderr

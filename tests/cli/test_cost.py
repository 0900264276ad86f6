"""`tpu-kernels cost` and `tpu-kernels tune`, whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpu_kernels import load_registry, load_spec
from tpu_kernels.cli.main import app
from tpu_kernels.errors import SpecError

run = CliRunner().invoke


def test_a_kernel_beside_xla(tmp_path: Path) -> None:
    """Capture, both compilations, both estimates, and every form of the answer."""
    page, picture = tmp_path / "costs.html", tmp_path / "costs.svg"
    sizes = ["--case", "qwen3-0.6b/decode", "--batch", "1", "--max-len", "2048", "--length", "512"]
    forms = ["--json", "--plot", str(picture), "--html", str(page)]
    result = run(app, ["cost", "static-attention", "--generation", "v6e", *sizes, *forms])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["chip"], row["case"], row["batch"], row["max_len"]) == ("v6e", "qwen3-0.6b/decode", 1, 2048)
    # XLA's program reads all of the cache, the kernel a quarter of it.
    assert row["xla_bytes"] > 2 * 2 * 8 * 2048 * 128
    assert row["kernel"]["read_bytes"] < 1.1 * 2 * 2 * 8 * 512 * 128
    assert row["limit_us"] < row["kernel_us"] < row["xla_us"]
    assert row["ratio"] == pytest.approx(row["xla_us"] / row["kernel_us"])
    assert "<svg" in picture.read_text() and "qwen3-0.6b/decode" in page.read_text()


def test_what_does_not_exist_is_said() -> None:
    result = run(app, ["cost", "static-attention", "--case", "phi-5"])
    assert result.exit_code == 2 and "there is no such case" in result.output
    result = run(app, ["cost", "--generation", "v9", "--case", "phi-4"])
    assert result.exit_code == 2 and "not known" in result.output
    result = run(app, ["cost", "--topology", "v6e:big", "--case", "phi-4"])
    assert result.exit_code == 2 and "not a topology" in result.output


def test_a_file_that_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\n")
    result = run(app, ["cost", str(tmp_path / "spec.yaml")])
    assert isinstance(result.exception, SpecError)


def test_tune_writes_only_what_is_better(tmp_path: Path) -> None:
    bundled = load_registry().get("attention/static-attention").file
    assert bundled is not None
    spec = Path(shutil.copy(bundled, tmp_path))
    options = ["--generation", "v6e", "--case", "qwen3-0.6b/decode", "--batch", "1", "--max-len", "1024"]
    result = run(app, ["tune", str(spec), *options])
    assert result.exit_code == 0, result.output
    assert "v6e, us by estimate" in result.stdout and "written" in result.stdout
    assert load_spec(spec).model_dump(exclude={"tune"}) == load_spec(bundled).model_dump(exclude={"tune"})

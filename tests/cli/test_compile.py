"""`tpu-kernels compile`: real compilations by libtpu, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tpu_kernels.cli.main import app
from tpu_kernels.errors import KernelLoadError, SpecError

KERNEL = """
import jax
from jax.experimental import pallas as pl


def _double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def attend(query, key, value, bounds, sinks=None, *, scale, softcap=None):
    block = {block}
    spec = pl.BlockSpec(block, lambda i: (0, 0, i, 0))
    shape = jax.ShapeDtypeStruct(key.shape, key.dtype)
    grid = (key.shape[2] // block[2],)
    return pl.pallas_call(_double, out_shape=shape, grid=grid, in_specs=[spec], out_specs=spec)(key)
"""
CASE = ("--case", "qwen3-0.6b/decode", "--topology", "v5e:1x1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compile", *arguments])


def lines_of(result: Result) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(result.stdout)
    return lines


def kernel(folder: Path, block: str) -> str:
    file = folder / "kernel.py"
    file.write_text(KERNEL.replace("{block}", block))
    return str(file)


def test_a_kernel_by_its_spec() -> None:
    result = run(
        "static-attention", "--case", "qwen3-0.6b", "--case", "gpt-oss-20b/decode", "--topology", "v6e,v4:2x2x1"
    )
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()[1:-1]]
    assert [row[:3] for row in rows[:3]] == [
        ["v6e:2x2", "qwen3-0.6b/decode", "ok"],
        ["v6e:2x2", "qwen3-0.6b/prefill", "ok"],
        ["v6e:2x2", "gpt-oss-20b/decode", "ok"],
    ]
    # The spec leaves v4 out, so nothing is compiled there and nothing fails.
    assert all(row[:1] + row[2:4] == ["v4:2x2x1", "not", "covered"] for row in rows[3:])
    assert "got v4" in result.stdout


def test_json_has_every_figure() -> None:
    (line,) = lines_of(run("static-attention", *CASE, "--batch", "2", "--max-len", "1024", "--json"))
    assert (line["status"], line["chip"], line["topology"]) == ("ok", "v5e", "v5e:1x1")
    cache = 2 * 2 * 8 * 1024 * 128 * 2
    assert cache < line["argument_bytes"] < cache + 2**20
    assert 0 < line["vmem_bytes"] < line["vmem_of"]
    assert line["fits"] and line["free_bytes"] == line["usable_bytes"] - sum(
        line[f"{name}_bytes"] for name in ("argument", "output", "temp", "generated_code")
    )


def test_a_kernel_that_overflows_vmem(tmp_path: Path) -> None:
    result = run(kernel(tmp_path, "(4, 8, 4096, 128)"), *CASE, "--max-len", "65536")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "failed  " in line]
    assert "overflows VMEM: its blocks and scratch take 128.00M, 112.00M more than its limit of 16.00M" in line


def test_a_block_that_lowering_refuses(tmp_path: Path) -> None:
    result = run(kernel(tmp_path, "(4, 8, 100, 64)"), *CASE, "--json")
    assert result.exit_code == 1
    (line,) = lines_of(result)
    assert line["fits"] is None
    assert line["message"].startswith("block shape (4, 8, 100, 64) of args[0] in pallas_call _double at ")
    assert "must be multiples of" in line["message"]


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 16384,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "vocab_size": 600000,
        "tie_word_embeddings": False,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    result = run(str(file), "--topology", "v5e", "--program", "decode", "--flow", "both", "--json", "--max-len", "256")
    assert result.exit_code == 1
    ours, plain = lines_of(result)
    assert (ours["flow"], plain["flow"]) == ("tpu-kernels", "plain")
    assert ours["fits"] is False and "36.67 GiB of weights" in ours["message"]
    assert plain["fits"] is False and "exceeds available HBM (15.75G)" in plain["message"]
    assert -22 * 2**30 < plain["free_bytes"] < -20 * 2**30
    assert "\n" not in ours["message"] + plain["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("static-attention", "--topology", "v9"), "This TPU generation is not known"),
        (("static-attention", "--topology", "v5e:1by1"), "not a topology"),
        (("org/model", "--topology", "v6e:1x1", "--tp", "4"), "v6e:1x1, which has 1"),
        (("static-attention", "--case", "qwen4"), "there is no such case"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())


def test_subjects_that_cannot_be_compiled(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema_version: 1\nname: mlp/mine\nop: mlp\ndescription: A kernel.\n"
        "source: {kind: hub, repo: acme/mlp, version: 2}\nlayer: Mlp\nrequires: {dtypes: [bfloat16]}\n"
    )
    (tmp_path / "no_entry.py").write_text("def other(): ...\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(run(str(tmp_path / "mine.yaml")).exception, SpecError)
    for subject in (tmp_path / "no_entry.py", tmp_path / "gone.py", empty):
        assert isinstance(run(str(subject)).exception, KernelLoadError)

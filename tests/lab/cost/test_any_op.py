"""Any op goes through the comparison: here products of matrices, with more to compare with than their reference."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.lab import products
from tests.lab.products import BLOCKS, ProductCase
from tpu_kernels import KernelSpec, load_registry
from tpu_kernels.chips import chip
from tpu_kernels.cli.main import app
from tpu_kernels.lab.cost import command
from tpu_kernels.lab.cost.command import KernelReport, Request, cost_report
from tpu_kernels.lab.cost.compare import XLA, Comparison, Plain, compare, compared
from tpu_kernels.lab.cost.report import timed
from tpu_kernels.lab.cost.subject import op_subject
from tpu_kernels.lab.cost.xla_time import ProgramCost
from tpu_kernels.lab.jax_source import STATIC_ATTENTION
from tpu_kernels.lab.kernel_cases import chosen_cases
from tpu_kernels.ops.attention.cases import case as attention_case


def comparison(**seconds: float) -> Comparison:
    """One without a kernel, beside functions that take so long."""
    subject = op_subject(ProductCase("tiny/decode", 128, 256), STATIC_ATTENTION, "bfloat16")
    plain = Plain({label: ProgramCost((), time, chip("v6e")) for label, time in seconds.items()})
    return Comparison(subject, "v6e", None, "it was not compiled", plain)


def test_a_subject_is_the_case(tmp_path: Path) -> None:
    case = ProductCase("tiny/decode", 128, 256)
    subject = op_subject(case, tmp_path / "kernel.py", "bfloat16", block_m=64)
    assert (subject.job.function, subject.job.keywords) == ("matmul", {"block_m": 64})
    assert subject.job.arguments == subject.reference.arguments == case.arguments("bfloat16")
    assert subject.reference.function == case.reference
    assert {label: one.function for label, one in subject.baselines.items()} == case.baselines
    assert len({subject.reference.name, *(one.name for one in subject.baselines.values())}) == 3
    assert (subject.needed_bytes, subject.needed_flops) == (2 * 512 * 256, 2 * 128 * 256**2)


def test_a_kernel_beside_several_functions(product_spec: KernelSpec, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    cases = chosen_cases(product_spec, ["tiny/decode"])
    (result,) = compare(product_spec, cases, ["v6e"], say=said.append, tokens=256)
    assert [line.split()[0] for line in said] == ["capturing", "compiling"]
    assert result.error is None and result.kernel is not None and result.xla is not None
    assert result.subject.sizes == {"tokens": 256, "hidden": 256}
    assert result.subject.job.keywords == BLOCKS
    assert set(result.plain.costs) == {XLA, "in steps"}
    assert result.fastest == XLA and result.plain.costs["in steps"].seconds > result.xla.seconds
    assert result.ratio == result.xla.seconds / result.kernel.seconds
    assert "could not be captured" in result.plain.refused["counted"]
    # Both blocks of x meet both of y: each is read twice from HBM.
    assert result.kernel.read_bytes >= 2 * 2 * 256 * 256

    report = KernelReport([(product_spec, [result])])
    report.show(Console(highlight=False, width=100))
    out = capsys.readouterr().out
    assert "tiny/decode on v6e: counted: The program could not be captured" in " ".join(out.split())
    head = out[: out.index("v6e: schedule")]
    words = ("case", "tokens", "kernel", "XLA", "in", "steps us", "ratio", "reached")
    assert [word for word in words if word not in head] == [] and "counted us" not in head
    (row,) = json.loads(report.json())
    assert (row["spec"], row["op"], row["tokens"], row["fastest"]) == ("mlp/products", "mlp", 256, XLA)
    assert row["baselines"]["in steps"]["us"] > row["xla_us"] and "counted" in row["refused"]


def test_the_ratio_is_to_the_fastest() -> None:
    result = comparison(**{XLA: 3.0, "b": 1.0, "c": 2.0})
    assert (result.fastest, result.best) == ("b", result.plain.costs["b"])
    assert result.ratio is None  # there is no kernel
    assert comparison().fastest is None
    assert [one.xla_seconds for one in timed([(load_registry().get("static-attention"), [result])])] == [1.0]


def test_what_compiles_to_no_kernel_says_so(tmp_path: Path) -> None:
    plain = tmp_path / "kernel.py"
    plain.write_text("def matmul(x, y):\n    return x @ y\n")
    (result,) = compared([op_subject(ProductCase("tiny/decode", 128, 256), plain, "bfloat16")], "v6e")
    assert (result.kernel, result.error) == (None, "tiny/decode compiled to no Pallas kernel")


def test_few_cases_are_the_representatives_in_their_phases(product_spec: KernelSpec) -> None:
    names = [case.name for case in chosen_cases(product_spec)]
    assert names == ["wide/decode", "wide/prefill", "tiny/decode"]
    assert len(chosen_cases(product_spec, amount="differing")) == 4
    assert len(chosen_cases(product_spec, amount="all")) == 6
    assert [case.name for case in chosen_cases(load_registry().get("static-attention"))] == [
        "qwen3-0.6b/decode",
        "qwen3-0.6b/prefill",
        "gpt-oss-20b/decode",
    ]


def test_a_size_that_an_op_does_not_have(product_spec: KernelSpec) -> None:
    with pytest.raises(ValueError, match=r"Needs: +one of --tokens\n +Got: +--length"):
        compare(product_spec, chosen_cases(product_spec), ["v6e"], length=512)
    attention = load_registry().get("static-attention")
    with pytest.raises(ValueError, match=r"one of --batch, --max-len, --length\n +Got: +--tokens"):
        compare(attention, [attention_case("phi-4/decode")], ["v6e"], tokens=8)


def test_every_kernel_at_once(product_spec: KernelSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command without a subject: one table, one section and one label for each kernel."""
    monkeypatch.setitem(sys.modules, "tpu_kernels.ops.norm.cases", products.module("norm"))
    other = products.spec(tmp_path / "other", "norm")
    monkeypatch.setattr(command, "bundled_kernels", lambda: [other, product_spec])
    page, picture = tmp_path / "costs.html", tmp_path / "costs.svg"
    options = ["--generation", "v6e", "--case", "tiny/prefill"]
    result = CliRunner().invoke(app, ["cost", *options, "--html", str(page), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    told = [result.stdout.index(text) for text in ("norm/products:", "mlp/products:", "limit: the larger")]
    assert told == sorted(told) and result.stdout.count("limit: the larger") == 1
    assert result.stdout.count("tiny/prefill") >= 2
    text = page.read_text()
    assert "norm/products on v6e: costs" in text and "mlp/products on v6e: schedule" in text
    assert all(f"{op}/products tiny/prefill" in picture.read_text() for op in ("norm", "mlp"))


def test_a_name_that_no_kernel_knows(product_spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "bundled_kernels", lambda: [load_registry().get("static-attention"), product_spec])
    with pytest.raises(ValueError, match="there is no such case"):
        cost_report(None, Request(("v6e",), ("phi-4", "tinny")))

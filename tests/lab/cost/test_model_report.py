"""The costs of a model in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tpu_kernels.lab.cost.model_cost import GroupCost, ModelCost
from tpu_kernels.lab.cost.model_groups import GROUPS
from tpu_kernels.lab.cost.model_report import ModelReport
from tpu_kernels.lab.programs import FLOWS, ModelCase
from tpu_kernels.lab.targets import target_of


@pytest.fixture
def report() -> ModelReport:
    groups = {name: GroupCost(1e-6 * number, 1000_000 * number, 0) for number, name in enumerate(GROUPS, 1)}
    costs = [
        ModelCost(ModelCase("org/model", flow), target_of("v6e:1x1"), 512, None, 20e-6, groups, note=f"note of {flow}")
        for flow in FLOWS
    ]
    failed = ModelCost(ModelCase("org/model", "plain"), target_of("v5e"), 512, "does not fit")
    return ModelReport("org/model", [*costs, failed])


def test_tables(report: ModelReport, capsys: pytest.CaptureFixture[str]) -> None:
    report.show(Console(highlight=False, width=80))
    out = capsys.readouterr().out
    assert "512 of 4096 positions in use" in out
    (total,) = [line for line in out.splitlines() if line.strip().startswith("total")]
    assert total.split() == ["total", "45", "20", "45", "20"]
    assert "plain on v5e: does not fit" in out and "note of tpu-kernels" in out


def test_files(report: ModelReport, tmp_path: Path) -> None:
    assert [row["flow"] for row in json.loads(report.json())] == [*FLOWS, "plain"]
    report.plot(tmp_path / "model.png")
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
    report.page(tmp_path / "model.html")
    page = (tmp_path / "model.html").read_text()
    assert all(name in page for name in ("<svg", "org/model", "v6e:1x1", "cache copies", "note of plain"))

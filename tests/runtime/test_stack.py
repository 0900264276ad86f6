from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tpu_kernels.errors import StackError
from tpu_kernels.runtime.stack import (
    OUR_RANGES,
    Finding,
    Lookup,
    Package,
    check_stack,
    installed,
    version_findings,
)

ROOT = Path(__file__).parents[2]

FITTING = {
    "torch": Package("2.13.0+cpu"),
    "torch_tpu": Package("0.2.0", ("libtpu>=0.0.50", "torch>=2.11.0,<=2.15.0", "numpy>=2")),
    "transformers": Package("5.22.2", ('kernels<0.18,>=0.17.2; extra == "kernels"', "huggingface-hub<3.0,>=1.31.0")),
    "kernels": Package("0.17.2", ("huggingface-hub>=1.10.0", "torch ; extra == 'torch'")),
    "huggingface_hub": Package("2.4.0"),
    "jax": Package("0.10.2", ("jaxlib<=0.10.2,>=0.10.1", 'libtpu==0.0.42.*; extra == "tpu"')),
    "jaxlib": Package("0.10.2"),
    "accelerate": Package("1.15.0", ("torch>=2.0.0",)),
    "libtpu": Package("0.0.52"),
}


def lookup(changes: Mapping[str, Package | None]) -> Lookup:
    return (FITTING | dict(changes)).get


def finding(name: str, changes: Mapping[str, Package | None]) -> Finding:
    return next(found for found in version_findings(lookup(changes)) if found.name == name)


def test_the_installed_stack_fits() -> None:
    check_stack()
    assert {found.name for found in version_findings()} == set(OUR_RANGES)


def test_the_ranges_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["tpu"]]
    declared = {requirement.name: requirement.specifier for requirement in map(Requirement, texts)}
    for name, wanted in OUR_RANGES.items():
        if wanted:
            assert declared[name] == Requirement(f"{name}{wanted}").specifier


def test_a_stack_that_fits_has_no_remedy() -> None:
    findings = version_findings(lookup({}))
    assert [found.status for found in findings] == ["ok"] * len(OUR_RANGES)
    assert not any(found.remedy for found in findings)


def test_everybody_who_has_a_say_on_a_version_is_named() -> None:
    assert finding("kernels", {}).needs == ">=0.17.2,<0.18 (tpu-kernels); <0.18,>=0.17.2 (transformers 5.22.2)"
    assert finding("libtpu", {}).needs == ">=0.0.52,<0.0.53 (tpu-kernels); >=0.0.50 (torch_tpu 0.2.0)"
    assert finding("jaxlib", {}).needs == "<=0.10.2,>=0.10.1 (jax 0.10.2)"


def test_kernels_outside_the_window_of_transformers() -> None:
    found = finding("kernels", {"kernels": Package("0.18.2")})
    assert found.status == "broken"
    assert "<0.18,>=0.17.2 (transformers 5.22.2)" in found.needs
    assert found.remedy == 'pip install "transformers>=5.22,<5.23" "kernels>=0.17.2,<0.18"'


def test_transformers_that_wants_newer_kernels() -> None:
    newer = Package("5.24.0", ('kernels<0.19,>=0.18.2; extra == "kernels"',))
    assert finding("transformers", {"transformers": newer}).status == "broken"
    found = finding("kernels", {"transformers": newer})
    assert found.status == "broken"
    assert found.needs == "<0.19,>=0.18.2 (transformers 5.24.0)"
    assert '"transformers>=5.22,<5.23"' in found.remedy


def test_jaxlib_that_does_not_fit_jax() -> None:
    found = finding("jaxlib", {"jaxlib": Package("0.11.0")})
    assert (found.status, found.needs) == ("broken", "<=0.10.2,>=0.10.1 (jax 0.10.2)")
    assert found.remedy == 'pip install "jaxlib<=0.10.2,>=0.10.1"'


def test_a_missing_package_is_broken_but_libtpu_is_not_needed_everywhere() -> None:
    found = finding("torch_tpu", {"torch_tpu": None})
    assert (found.status, found.found) == ("broken", "not installed")
    assert found.remedy == 'pip install "torch-tpu>=0.2,<0.3"'
    found = finding("libtpu", {"libtpu": None})
    assert found.status == "info"
    assert 'pip install "tpu-kernels[tpu]"' in found.remedy


def test_a_local_or_preliminary_version_counts_as_what_it_is() -> None:
    assert finding("torch", {"torch": Package("2.13.1+cu130")}).status == "ok"
    assert finding("torch", {"torch": Package("2.13.1rc1")}).status == "ok"
    assert finding("torch", {"torch": Package("2.14.0.dev20261101")}).status == "broken"


def test_check_stack_tells_all_that_is_wrong_at_once() -> None:
    with pytest.raises(StackError) as raised:
        check_stack(lookup({"kernels": Package("0.16.0"), "jax": None}))
    assert str(raised.value).splitlines() == [
        "the installed packages do not work together.",
        "  Needs: kernels >=0.17.2,<0.18 (tpu-kernels); <0.18,>=0.17.2 (transformers 5.22.2)",
        "         jax >=0.10.2,<0.11 (tpu-kernels)",
        "  Got:   kernels 0.16.0",
        "         jax not installed",
        '  Next:  pip install "transformers>=5.22,<5.23" "kernels>=0.17.2,<0.18"',
        '         pip install "jax>=0.10.2,<0.11"',
        "         or see `tpu-kernels doctor`.",
    ]


def test_the_check_can_be_overruled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TPU_KERNELS_SKIP_STACK_CHECK", "1")
    with caplog.at_level(logging.WARNING, logger="tpu_kernels"):
        check_stack(lookup({"jax": None}))
    assert "do not work together" in caplog.text
    assert "TPU_KERNELS_SKIP_STACK_CHECK is set" in caplog.text
    monkeypatch.setenv("TPU_KERNELS_SKIP_STACK_CHECK", "0")
    with pytest.raises(StackError):
        check_stack(lookup({"jax": None}))


def test_installed_reads_real_metadata() -> None:
    package = installed("torch_tpu")
    assert package is not None
    assert any(text.startswith("torch>=") for text in package.requires)
    assert installed("no-such-distribution-anywhere") is None


def test_the_check_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tpu_kernels.runtime.stack import check_stack; check_stack()\n"
        "print([name for name in ('torch', 'jax', 'transformers', 'kernels') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.stdout.strip() == "[]", run.stderr

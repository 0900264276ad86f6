from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tpu_kernels.errors import KernelLoadError
from tpu_kernels.lab.build_variant import build_variant, differences, main, variant_files
from tpu_kernels.lab.jax_source import HUB_KERNELS, load_source


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HUB_KERNELS / "static-attention", tmp_path / "static-attention"))


def test_building_twice_gives_the_same_bytes(repo: Path) -> None:
    first = variant_files(repo)
    target = build_variant(repo)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == first
    assert variant_files(repo) == first


def test_the_id_follows_the_sources(repo: Path) -> None:
    before = json.loads(variant_files(repo)["metadata.json"])["id"]
    source = repo / "torch-ext" / "static_attention" / "kernel.py"
    source.write_text(source.read_text() + "\n")
    after = json.loads(variant_files(repo)["metadata.json"])["id"]
    assert before != after
    assert after.isidentifier()
    assert after.startswith("_static_attention_tpu_")


def test_check_names_what_is_out_of_date(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(repo), "--check"]) == 0
    package = repo / "torch-ext" / "static_attention"
    (package / "op.py").write_text((package / "op.py").read_text() + "\n")
    (package / "more.py").write_text("")
    (repo / "build" / "torch-tpu" / "old.py").write_text("")
    assert main([str(repo), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "missing: more.py",
        "unexpected: old.py",
        "differs: metadata.json",
        "differs: op.py",
    ]
    assert main([str(repo)]) == 0
    assert differences(repo) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (None, "is no kernel repository"),
        ("[general]\nname = 'a'\nbackends = ['tpu']\n", "missing: version, license"),
        ("[general]\nname='a'\nversion=1\nlicense='MIT'\nbackends=['cuda']\n", "backends = ['cuda']"),
        ("[general]\nname='a-b'\nversion=1\nlicense='MIT'\nbackends=['tpu']\n", "has no package to build"),
    ],
)
def test_what_is_no_tpu_kernel_is_refused(tmp_path: Path, build: str | None, message: str) -> None:
    if build is not None:
        (tmp_path / "build.toml").write_text(build)
    with pytest.raises(KernelLoadError) as caught:
        build_variant(tmp_path)
    assert message in str(caught.value)


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelLoadError, match=r"kernel\.py"):
        load_source(tmp_path / "kernel.py")

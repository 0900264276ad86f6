"""Loading kernels: what is checked before anything is imported, and what goes on record."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.kernels import copy_of_bundled, edit
from tpu_kernels import KernelLoadError, KernelSpec, load_registry
from tpu_kernels.lab.build_variant import build_variant
from tpu_kernels.runtime.hub import load_kernel
from tpu_kernels.specs import HubSource, PathSource, Requires


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return copy_of_bundled(tmp_path)


def spec_of(source: PathSource | HubSource, function: str = "static_attention") -> KernelSpec:
    return KernelSpec(
        name="attention/copy",
        op="attention",
        description="for tests",
        source=source,
        function=function,
        requires=Requires(dtypes=("float32",)),
    )


def at(folder: Path, function: str = "static_attention") -> KernelSpec:
    return spec_of(PathSource(path=str(folder)), function)


def test_the_bundled_kernel_is_loaded_through_kernels_with_its_provenance() -> None:
    loaded = load_kernel(load_registry().get("attention/static-attention"))
    assert loaded.repo == "bundled static-attention" and loaded.revision == "v1"
    assert loaded.digest.startswith("sha256:")
    assert loaded.module.__name__ == loaded.module.__spec__.name != "static_attention"
    out = loaded.entry(
        torch.ones(1, 2, 1, 16),
        torch.ones(1, 1, 128, 16),
        torch.ones(1, 1, 128, 16),
        torch.tensor([[[[0, 3]]]], dtype=torch.int32),
        scale=0.25,
    )
    torch.testing.assert_close(out, torch.ones(1, 2, 1, 16))


def test_an_edited_kernel_is_another_kernel(repository: Path) -> None:
    first = load_kernel(at(repository))
    edit(repository, "op.py", "Attention of some new queries", "Attention of several new queries")
    second_home = repository.with_name("second")
    shutil.move(repository, second_home)
    second = load_kernel(at(second_home))
    assert second.digest != first.digest and second.module is not first.module


def test_a_file_that_its_digest_does_not_know_is_not_imported(repository: Path) -> None:
    mark = repository / "imported"
    init = repository / "build" / "torch-tpu" / "__init__.py"
    init.write_text(init.read_text() + f"\nopen({str(mark)!r}, 'w').close()\n")
    with pytest.raises(KernelLoadError, match=r"attention/copy[\s\S]*not those that its digest was made of"):
        load_kernel(at(repository))
    assert not mark.exists()


def test_a_build_without_digest_or_metadata(repository: Path) -> None:
    metadata = repository / "build" / "torch-tpu" / "metadata.json"
    text = metadata.read_text()
    metadata.write_text(text[: text.index(',\n  "digest"')] + "\n}\n")
    with pytest.raises(KernelLoadError, match=r"metadata\.json has no digest[\s\S]*rebuild"):
        load_kernel(at(repository))
    metadata.unlink()
    with pytest.raises(KernelLoadError, match=r"no TPU build[\s\S]*metadata\.json[\s\S]*no such file"):
        load_kernel(at(repository))


def test_a_kernel_that_raises_at_import(repository: Path) -> None:
    edit(repository, "__init__.py", "from .op", "raise OSError('no luck today')\nfrom .op")
    with pytest.raises(KernelLoadError, match=r"could not load it[\s\S]*OSError: no luck today"):
        load_kernel(at(repository))


def test_a_function_that_is_not_there(repository: Path) -> None:
    with pytest.raises(KernelLoadError, match=r"no function `attend_to`[\s\S]*static_attention in"):
        load_kernel(at(repository, "attend_to"))


def test_a_hub_kernel_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    spec = spec_of(HubSource(repo="kernels-community/no-such-kernel", version=1, trust="repo"))
    with pytest.raises(KernelLoadError, match=r"could not load it[\s\S]*no-such-kernel[\s\S]*tpu-kernels doctor"):
        load_kernel(spec)


def test_bytecode_that_python_wrote_beside_it_does_not_spoil_the_digest(repository: Path) -> None:
    code = (
        "from tpu_kernels import emulator; emulator.start()\n"
        "import sys; sys.dont_write_bytecode = False\n"
        "from tests.runtime.test_hub import at; from tpu_kernels.runtime.hub import load_kernel\n"
        f"from pathlib import Path; print(load_kernel(at(Path({str(repository)!r}))).digest)"
    )
    root = Path(__file__).parents[2]
    runs = [
        subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[-1].stderr
    assert (repository / "build" / "torch-tpu" / "__pycache__").is_dir()
    assert runs[0].stdout.splitlines()[-1] == runs[1].stdout.splitlines()[-1]


def test_tuning_that_the_kernel_does_not_take(repository: Path) -> None:
    spec = at(repository).model_copy(update={"tune": {"v5e": {"block_q": 64, "blok_k": 512}}})
    with pytest.raises(KernelLoadError, match=r"takes no argument `blok_k`[\s\S]*tune.v5e[\s\S]*block_k"):
        load_kernel(spec)


def test_a_layer_is_an_entry_point_too(repository: Path) -> None:
    edit(repository, "__init__.py", "__all__", "from . import layers\n\n__all__")
    layers = repository / "torch-ext" / "static_attention" / "layers.py"
    layers.write_text(
        "import torch\n"
        "from .op import static_attention\n\n\n"
        "class StaticAttention(torch.nn.Module):\n"
        "    def forward(self, query, key, value, bounds, sinks=None, *, scale, softcap=None):\n"
        "        return static_attention(query, key, value, bounds, sinks, scale=scale, softcap=softcap)\n"
    )
    build_variant(repository)
    spec = at(repository).model_copy(update={"function": None, "layer": "StaticAttention"})
    ones = torch.ones(1, 1, 128, 16)
    bounds = torch.tensor([[[[0, 3]]]], dtype=torch.int32)
    out = load_kernel(spec).entry(ones[:, :, :1], ones, ones, bounds, scale=0.25)
    torch.testing.assert_close(out, ones[:, :, :1])
    missing = spec.model_copy(update={"layer": "Other"})
    with pytest.raises(KernelLoadError, match="no layer `Other`"):
        load_kernel(missing)


def test_a_redirected_hub_kernel_is_refused(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"org/kernel={repository}")
    with pytest.raises(KernelLoadError, match="LOCAL_KERNELS redirects org/kernel, past its pin and its digest"):
        load_kernel(spec_of(HubSource(repo="org/kernel", version=1, trust="repo")))

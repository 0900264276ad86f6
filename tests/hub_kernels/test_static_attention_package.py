"""The Hub kernel as `kernels` loads it: on the (emulated) TPU, on the CPU, and where there is no torch.tpu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kernels import get_local_kernel
from kernels._rust import Digest, Metadata

from tpu_kernels import emulator
from tpu_kernels.lab.build_variant import differences
from tpu_kernels.lab.jax_source import HUB_KERNELS
from tpu_kernels.ops.attention.cases import case
from tpu_kernels.ops.attention.suite import Probe, all_probes, case_probe, check_probe, edge_probes, run_suite

REPO = HUB_KERNELS / "static-attention"
VARIANT = REPO / "build" / "torch-tpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_local_kernel(REPO)


def on_tpu(kernel: ModuleType, compiled: bool = False):
    def attend(*tensors, **options):
        moved = [None if tensor is None else tensor.to("tpu") for tensor in tensors]

        def call(*arguments):
            return kernel.static_attention(*arguments, **options, block_k=128)

        if compiled:
            torch._dynamo.reset()
            call = torch.compile(call, backend="tpu", fullgraph=True)
        return call(*moved).cpu()

    return attend


def test_the_committed_build_is_what_the_sources_make() -> None:
    assert differences(REPO) == []


def test_metadata_and_digest_are_what_kernels_expects() -> None:
    metadata = Metadata.read_from_file(VARIANT / "metadata.json")
    assert metadata.name.python_name == "static_attention"
    assert metadata.id.isidentifier()
    assert metadata.digest is not None
    written = json.loads((VARIANT / "metadata.json").read_text())["digest"]["files"]
    assert set(written) == {"__init__.py", "blocks.py", "kernel.py", "op.py"}


def test_the_digest_covers_the_files(tmp_path: Path) -> None:
    for path in VARIANT.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    digest = Metadata.read_from_file(tmp_path / "metadata.json").digest
    digest.validate(Digest.hash_variant(digest.algorithm, tmp_path))
    (tmp_path / "kernel.py").write_text("tampered = True\n")
    with pytest.raises(Exception, match=r"kernel\.py"):
        digest.validate(Digest.hash_variant(digest.algorithm, tmp_path))


def test_the_operator_lives_under_the_id_and_is_named_after_the_source(kernel: ModuleType) -> None:
    namespace, name = kernel.op._OPERATOR._qualname.split("::")
    assert namespace == kernel.__name__ == json.loads((VARIANT / "metadata.json").read_text())["id"]
    assert name.startswith("static_attention_")
    assert kernel.__all__ == ["static_attention"]


def test_on_the_cpu_it_passes_the_whole_suite(kernel: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert run_suite(kernel.static_attention, all_probes(dtype)) == []


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["gpt-oss-20b/decode/small", "gemma-2-2b/prefill/small"])
def test_on_the_tpu(kernel: ModuleType, name: str, compiled: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert check_probe(on_tpu(kernel, compiled), case_probe(case(name), dtype)) is None


@pytest.mark.parametrize("probe", list(edge_probes())[:4], ids=lambda probe: probe.name)
def test_edges_on_the_tpu(kernel: ModuleType, probe: Probe) -> None:
    assert check_probe(on_tpu(kernel), probe) is None


def test_strided_inputs_and_one_compilation_for_any_bounds(kernel: ModuleType) -> None:
    """A model's query is a transposed view; new bounds are new data, not a new program."""
    torch._dynamo.reset()
    call = torch.compile(lambda *tensors: kernel.static_attention(*tensors, scale=0.3), backend="tpu", fullgraph=True)
    counts = []
    for end in (3, 100, 256):
        query = torch.randn(1, 1, 4, 64).to("tpu").transpose(1, 2)
        key, value = torch.randn(2, 1, 2, 256, 64).to("tpu").unbind(0)
        bounds = torch.tensor([[[[1, end]]]], dtype=torch.int32).to("tpu")
        got = call(query, key, value, bounds).cpu()
        wanted = kernel.static_attention(query.cpu(), key.cpu(), value.cpu(), bounds.cpu(), scale=0.3)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        counts.append(emulator.compilations())
    assert counts[1] == counts[2]


def test_the_fake_needs_no_jax_and_takes_symbolic_shapes(kernel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = torch.empty(2, 8, 5, 64)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        query = mode.from_tensor(real, static_shapes=False)
        key, value = torch.empty(2, 2, 256, 64), torch.empty(2, 2, 256, 32)
        bounds = torch.empty(2, 1, 5, 2, dtype=torch.int32)
        out = kernel.op._OPERATOR(query, key, value, bounds, scale=1.0)
    assert isinstance(out.shape[2], torch.SymInt)
    assert tuple(map(int, out.shape)) == (2, 8, 5, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(4, 1, 8)}, "needs query [B, Hq, T, D]"),
        ({"value": torch.zeros(1, 2, 17, 8)}, "for a query of shape (1, 4, 1, 8)"),
        ({"query": torch.zeros(1, 3, 1, 8)}, "got 3 and 2"),
        ({"key": torch.zeros(1, 2, 16, 8, dtype=torch.bfloat16)}, "of one dtype, float32 or bfloat16"),
        ({"bounds": torch.zeros(1, 1, 1, 2, dtype=torch.int64)}, "needs int32 bounds of shape [1, 1, 1, 2]"),
        ({"sinks": torch.zeros(2)}, "sinks of shape [4]; got (2,)"),
    ],
)
def test_bad_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, torch.Tensor], message: str) -> None:
    good = {
        "query": torch.zeros(1, 4, 1, 8),
        "key": torch.zeros(1, 2, 16, 8),
        "value": torch.zeros(1, 2, 16, 8),
        "bounds": torch.zeros(1, 1, 1, 2, dtype=torch.int32),
    }
    with pytest.raises(ValueError) as caught:
        kernel.static_attention(**{**good, **change}, scale=1.0)
    assert message in str(caught.value)


def test_without_torch_tpu_it_imports_runs_on_the_cpu_and_says_what_is_missing() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPO / "torch-ext")!r})
        import torch
        from static_attention import static_attention
        assert "jax" not in sys.modules
        query, key = torch.ones(1, 2, 1, 8), torch.ones(1, 1, 16, 8)
        bounds = torch.tensor([[[[0, 4]]]], dtype=torch.int32)
        print(static_attention(query, key, key, bounds, scale=1.0).sum().item())
        moved = [tensor.to("meta") for tensor in (query, key, key, bounds)]
        try:
            static_attention(*moved, scale=1.0)
        except RuntimeError as error:
            print(error)
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("TPU_LIBRARY_PATH", "PYTHONPATH")}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    total, *error = run.stdout.splitlines()
    assert float(total) == 16.0
    assert "no implementation for tensors on `meta`" in error[0]
    assert "torch has no `torch.tpu`" in "\n".join(error)

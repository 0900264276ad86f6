"""The rotary kernel as `kernels` loads it: on the (emulated) TPU, on the CPU, and where there is no torch.tpu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from kernels import get_local_kernel

from tpu_kernels import emulator
from tpu_kernels.lab.build_variant import differences
from tpu_kernels.lab.jax_source import HUB_KERNELS
from tpu_kernels.ops.rotary.suite import Probe, all_probes, check_probe, edge_probes, run_suite

REPO = HUB_KERNELS / "rotary"
VARIANT = REPO / "build" / "torch-tpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_local_kernel(REPO)


def on_tpu(kernel: ModuleType, compiled: bool = False):
    def rotary(*tensors, **options):
        moved = [None if tensor is None else tensor.to("tpu") for tensor in tensors]

        def call(*arguments):
            return kernel.rotary(*arguments, **options)

        if compiled:
            torch._dynamo.reset()
            call = torch.compile(call, backend="tpu", fullgraph=True)
        return call(*moved).cpu()

    return rotary


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


def test_the_committed_build_is_what_the_sources_make() -> None:
    assert differences(REPO) == []


def test_the_operator_lives_under_the_id_and_is_named_after_the_source(kernel: ModuleType) -> None:
    namespace, name = kernel.op._OPERATOR._qualname.split("::")
    assert namespace == kernel.__name__ == json.loads((VARIANT / "metadata.json").read_text())["id"]
    assert name.startswith("rotary_")
    assert kernel.__all__ == ["rotary"]


def test_on_the_cpu_it_passes_the_whole_suite(kernel: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert run_suite(kernel.rotary, all_probes(dtype)) == []


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[:12], ids=name_of)
def test_on_the_tpu(kernel: ModuleType, probe: Probe, compiled: bool) -> None:
    assert check_probe(on_tpu(kernel, compiled), probe) is None


def test_one_compilation_for_any_values_and_strided_inputs(kernel: ModuleType) -> None:
    """A model's query is a transposed view."""
    torch._dynamo.reset()
    call = torch.compile(kernel.rotary, backend="tpu", fullgraph=True)
    counts = []
    for _ in range(3):
        x, (cos, sin) = torch.randn(2, 7, 4, 64).to("tpu").transpose(1, 2), torch.randn(2, 1, 7, 64).to("tpu").unbind(0)
        torch.testing.assert_close(call(x, cos, sin).cpu(), kernel.rotary(x.cpu(), cos.cpu(), sin.cpu()))
        counts.append(emulator.compilations())
    assert counts[1] == counts[2]


def test_the_fake_needs_no_jax_and_takes_symbolic_shapes(kernel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = torch.empty(2, 3, 5, 64, dtype=torch.bfloat16)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x, table = mode.from_tensor(real, static_shapes=False), torch.empty(1, 5, 32)
        out = kernel.op._OPERATOR(x, table, table, layout="half", block_positions=16)
    assert isinstance(out.shape[2], torch.SymInt)
    assert out.dtype == torch.bfloat16
    assert tuple(map(int, out.shape)) == (2, 3, 5, 64)


TABLE = torch.zeros(1, 3, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 3, 8)}, "needs x [B, heads, T, D]"),
        ({"x": torch.zeros(2, 4, 3, 8, dtype=torch.float16)}, "float32 or bfloat16; got torch.float16 (2, 4, 3, 8)"),
        ({"cos": torch.zeros(3, 3, 8)}, "needs cos [2 or 1, 3, R]"),
        ({"cos": torch.zeros(1, 4, 8)}, "got (1, 4, 8)"),
        ({"cos": torch.zeros(1, 3, 10)}, "R even and 2 to 8; got (1, 3, 10)"),
        ({"cos": torch.zeros(1, 3, 5)}, "R even and 2 to 8; got (1, 3, 5)"),
        ({"sin": torch.zeros(2, 3, 8)}, "needs sin of cos' shape (1, 3, 8); got (2, 3, 8)"),
        ({"cos": TABLE.bfloat16(), "sin": TABLE.bfloat16()}, "needs cos and sin of one dtype, torch.float32"),
        ({"layout": "pairs"}, "needs a layout, half or interleaved; got 'pairs'"),
        ({"rounding": "never"}, "needs a rounding, each or last; got 'never'"),
    ],
)
def test_bad_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kernel.rotary(**{"x": torch.zeros(2, 4, 3, 8), "cos": TABLE, "sin": TABLE, **change})
    assert message in str(caught.value)


def test_without_torch_tpu_it_imports_runs_on_the_cpu_and_says_what_is_missing() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPO / "torch-ext")!r})
        import torch
        from rotary import rotary
        assert "jax" not in sys.modules
        x, cos, sin = torch.ones(1, 2, 1, 8), torch.full((1, 1, 4), 2.0), torch.zeros(1, 1, 4)
        print(rotary(x, cos, sin).sum().item())
        try:
            rotary(x.to("meta"), cos.to("meta"), sin.to("meta"))
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
    assert float(total) == 2 * (4 * 2.0 + 4)
    assert "no implementation for tensors on `meta`" in error[0]
    assert "torch has no `torch.tpu`" in "\n".join(error)

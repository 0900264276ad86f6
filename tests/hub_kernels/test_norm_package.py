"""The norm kernel as `kernels` loads it: on the (emulated) TPU, on the CPU, and where there is no torch.tpu."""

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
from tpu_kernels.ops.norm.suite import Probe, all_probes, check_probe, edge_probes, run_suite

REPO = HUB_KERNELS / "norm"
VARIANT = REPO / "build" / "torch-tpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_local_kernel(REPO)


def on_tpu(kernel: ModuleType, compiled: bool = False):
    def norm(*tensors, **options):
        moved = [None if tensor is None else tensor.to("tpu") for tensor in tensors]

        def call(*arguments):
            return kernel.norm(*arguments, **options)

        if compiled:
            torch._dynamo.reset()
            call = torch.compile(call, backend="tpu", fullgraph=True)
        return call(*moved).cpu()

    return norm


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


def test_the_committed_build_is_what_the_sources_make() -> None:
    assert differences(REPO) == []


def test_the_operator_lives_under_the_id_and_is_named_after_the_source(kernel: ModuleType) -> None:
    namespace, name = kernel.op._OPERATOR._qualname.split("::")
    assert namespace == kernel.__name__ == json.loads((VARIANT / "metadata.json").read_text())["id"]
    assert name.startswith("norm_")
    assert kernel.__all__ == ["norm"]


def test_on_the_cpu_it_passes_the_whole_suite(kernel: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert run_suite(kernel.norm, all_probes(dtype)) == []


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("probe", list(edge_probes(torch.bfloat16))[7:16], ids=name_of)
def test_on_the_tpu(kernel: ModuleType, probe: Probe, compiled: bool) -> None:
    assert check_probe(on_tpu(kernel, compiled), probe) is None


def test_one_compilation_for_any_values_and_strided_inputs(kernel: ModuleType) -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda *tensors: kernel.norm(*tensors, eps=1e-5), backend="tpu", fullgraph=True)
    counts = []
    for _ in range(3):
        x, weight = torch.randn(2, 3, 4, 64).to("tpu").transpose(1, 2), torch.randn(64).to("tpu")
        torch.testing.assert_close(call(x, weight).cpu(), kernel.norm(x.cpu(), weight.cpu(), eps=1e-5))
        counts.append(emulator.compilations())
    assert counts[1] == counts[2]


def test_the_fake_needs_no_jax_and_takes_symbolic_shapes(kernel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = torch.empty(2, 5, 64, dtype=torch.bfloat16)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(real, static_shapes=False)
        out = kernel.op._OPERATOR(x, torch.empty(64, dtype=torch.bfloat16), eps=1e-5, block_rows=16)
    assert isinstance(out.shape[1], torch.SymInt)
    assert out.dtype == torch.bfloat16
    assert tuple(map(int, out.shape)) == (2, 5, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(0, 8)}, "needs x [..., N], not empty"),
        ({"x": torch.zeros(4, 8, dtype=torch.float16)}, "float32 or bfloat16; got torch.float16 (4, 8)"),
        ({"weight": torch.zeros(4)}, "needs a weight of the last dimension of x (4, 8), or of its last two; got (4,)"),
        ({"weight": torch.zeros(8, dtype=torch.bfloat16)}, "needs a weight of torch.float32"),
        ({"x": torch.zeros(4, 8, dtype=torch.bfloat16)}, "needs a weight of torch.bfloat16"),
        ({"bias": torch.zeros(8)}, "needs center=True and a weight of the same shape for a bias"),
        ({"bias": torch.zeros(4, 8), "center": True}, "weight (8,), bias (4, 8)"),
        ({"weight": None, "offset": 1.0}, "needs a weight for an offset; got the offset 1.0"),
        ({"order": "scale"}, "needs an order, round_then_scale, scale_then_round, round_offset; got 'scale'"),
    ],
)
def test_bad_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kernel.norm(**{"x": torch.zeros(4, 8), "weight": torch.zeros(8), "eps": 1e-5, **change})
    assert message in str(caught.value)


def test_without_torch_tpu_it_imports_runs_on_the_cpu_and_says_what_is_missing() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPO / "torch-ext")!r})
        import torch
        from norm import norm
        assert "jax" not in sys.modules
        print(norm(3 * torch.ones(2, 8), torch.ones(8), eps=0.0).sum().item())
        try:
            norm(torch.ones(2, 8, device="meta"), eps=0.0)
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

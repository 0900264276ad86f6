"""The Hub kernel as `kernels` loads it: on the (emulated) TPU, on the CPU, and where there is no torch.tpu."""

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
from tpu_kernels.ops.activations import ACTIVATIONS
from tpu_kernels.ops.experts.cases import case
from tpu_kernels.ops.experts.suite import Probe, all_probes, case_probe, check_probe, edge_probes, run_suite

REPO = HUB_KERNELS / "grouped-experts"
VARIANT = REPO / "build" / "torch-tpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_local_kernel(REPO)


def on_tpu(kernel: ModuleType, compiled: bool = False, **tuning: int):
    def experts(*tensors, **options):
        moved = [None if tensor is None else tensor.to("tpu") for tensor in tensors]
        moved[1] = moved[1].to(torch.int64)

        def call(*arguments):
            return kernel.grouped_experts(*arguments, **options, **tuning)

        if compiled:
            torch._dynamo.reset()
            call = torch.compile(call, backend="tpu", fullgraph=True)
        return call(*moved).cpu()

    return experts


def test_the_committed_build_is_what_the_sources_make() -> None:
    assert differences(REPO) == []


def test_activations_are_those_of_the_other_kernels_byte_for_byte() -> None:
    other = HUB_KERNELS / "fused-mlp" / "torch-ext" / "fused_mlp" / "activations.py"
    assert (REPO / "torch-ext" / "grouped_experts" / "activations.py").read_bytes() == other.read_bytes()


def test_the_operator_lives_under_the_id_and_is_named_after_the_source(kernel: ModuleType) -> None:
    namespace, name = kernel.op._OPERATOR._qualname.split("::")
    assert namespace == kernel.__name__ == json.loads((VARIANT / "metadata.json").read_text())["id"]
    assert name.startswith("grouped_experts_")
    assert kernel.__all__ == ["grouped_experts"]


def test_on_the_cpu_it_passes_the_whole_suite(kernel: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert run_suite(kernel.grouped_experts, all_probes(dtype)) == []


def test_every_activation_on_the_cpu(kernel: ModuleType) -> None:
    probe = next(probe for probe in edge_probes() if "rounding" in probe.name)
    for activation in ACTIVATIONS:
        telling = Probe(activation, probe.arguments, {**probe.keywords, "activation": activation})
        assert check_probe(kernel.grouped_experts, telling) is None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_few_tokens_on_the_tpu(kernel: ModuleType, compiled: bool) -> None:
    assert check_probe(on_tpu(kernel, compiled), case_probe(case("gpt-oss-20b/decode/small"))) is None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_sorted_rows_on_the_tpu(kernel: ModuleType, compiled: bool) -> None:
    probe = case_probe(case("two-layer/prefill/small"), torch.bfloat16)
    assert check_probe(on_tpu(kernel, compiled, tile=32), probe) is None


def test_one_compilation_for_any_routing(kernel: ModuleType) -> None:
    """New indices are new data, not a new program."""
    torch._dynamo.reset()
    call = torch.compile(
        lambda *tensors: kernel.grouped_experts(*tensors, activation="silu"), backend="tpu", fullgraph=True
    )
    hidden, weights, gate_up, down = (torch.randn(*size) for size in ((3, 32), (3, 2), (4, 32, 32), (4, 32, 16)))
    counts = []
    for indices in ([[0, 1], [1, 2], [3, 0]], [[2, 3], [2, 3], [2, 3]], [[4, 4], [4, 4], [4, 4]]):
        arguments = (hidden, torch.tensor(indices), weights, gate_up, down)
        got = call(*(one.to("tpu") for one in arguments)).cpu()
        torch.testing.assert_close(got, kernel.grouped_experts(*arguments, activation="silu"), atol=1e-4, rtol=1e-4)
        counts.append(emulator.compilations())
    assert counts[1] == counts[2]


def test_the_fake_needs_no_jax_and_takes_symbolic_shapes(kernel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = torch.empty(5, 32)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        hidden = mode.from_tensor(real, static_shapes=False)
        indices, weights = torch.empty(5, 2, dtype=torch.int32), torch.empty(5, 2)
        out = kernel.op._OPERATOR(
            hidden, indices, weights, torch.empty(4, 32, 32), torch.empty(4, 32, 16), activation="silu"
        )
    assert isinstance(out.shape[0], torch.SymInt)
    assert tuple(map(int, out.shape)) == (5, 32)


GOOD = {
    "hidden": torch.zeros(3, 32),
    "indices": torch.zeros(3, 2, dtype=torch.int64),
    "weights": torch.zeros(3, 2),
    "gate_up": torch.zeros(4, 48, 32),
    "down": torch.zeros(4, 32, 24),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(1, 3, 32)}, "needs hidden [T, H]"),
        ({"indices": torch.zeros(2, 2, dtype=torch.int64)}, "needs indices [3, K]; got (2, 2)"),
        ({"weights": torch.zeros(3, 1)}, "needs weights (3, 2), as indices; got (3, 1)"),
        ({"gate_up": torch.zeros(4, 24, 32)}, "needs gate_up (4, 48, 32); got (4, 24, 32)"),
        ({"transposed": True}, "needs down (4, 32, 32); got (4, 32, 24)"),
        ({"gated": False}, "needs gate_up (4, 24, 32); got (4, 48, 32)"),
        ({"gate_up_bias": torch.zeros(4, 24)}, "needs gate_up_bias (4, 48); got (4, 24)"),
        ({"down_bias": torch.zeros(32)}, "needs down_bias (4, 32); got (32,)"),
        ({"down": torch.zeros(4, 32, 24, dtype=torch.bfloat16)}, "of one dtype, float32 or bfloat16"),
        ({"weights": torch.zeros(3, 2, dtype=torch.bfloat16)}, "weights of torch.float32 or float32"),
        ({"indices": torch.zeros(3, 2)}, "indices of int32 or int64; got torch.float32"),
        ({"activation": "swish"}, "an activation of silu, gelu, "),
        ({"rounding": "never"}, 'rounding "each" or "last"; got \'never\''),
        ({"limit": -1.0}, "limit None or above 0; got -1.0"),
        ({"tile": 20}, "tile None or a positive multiple of 16; got 20"),
        ({"num_buffers": 1}, "num_buffers None, 2 or more; got 1"),
    ],
)
def test_bad_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kernel.grouped_experts(**{**GOOD, "activation": "silu", **change})
    assert message in str(caught.value)


def test_without_torch_tpu_it_imports_runs_on_the_cpu_and_says_what_is_missing() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPO / "torch-ext")!r})
        import torch
        from grouped_experts import grouped_experts
        assert "jax" not in sys.modules
        tensors = [torch.ones(1, 2), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)]
        tensors += [torch.ones(1, 4, 2), torch.ones(1, 2, 2)]
        print(grouped_experts(*tensors, activation="identity").sum().item())
        try:
            grouped_experts(*[tensor.to("meta") for tensor in tensors], activation="silu")
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

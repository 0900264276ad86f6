"""The Hub kernel as `kernels` loads it: on the (emulated) TPU, on the CPU, and where there is no torch.tpu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kernels import get_local_kernel
from kernels._rust import Digest, Metadata

from tests.hub_kernels.fused_mlp import FUNCTIONS, REPO
from tpu_kernels import emulator
from tpu_kernels.lab.build_variant import differences
from tpu_kernels.ops.activations import ACTIVATIONS
from tpu_kernels.ops.mlp.cases import case
from tpu_kernels.ops.mlp.suite import all_probes, case_probe, check_probe, edge_probes, run_suite

VARIANT = REPO / "build" / "torch-tpu"


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_local_kernel(REPO)


def on_cpu(kernel: ModuleType) -> dict[str, Callable[..., torch.Tensor]]:
    return {name: getattr(kernel, name) for name in FUNCTIONS}


def on_tpu(kernel: ModuleType, compiled: bool = False) -> dict[str, Callable[..., torch.Tensor]]:
    def moved(name: str) -> Callable[..., torch.Tensor]:
        function = getattr(kernel, name)

        def call(*tensors, **options):
            def run(*arguments):
                return function(*arguments, **options, block_i=128)

            there = [None if tensor is None else tensor.to("tpu") for tensor in tensors]
            if compiled:
                torch._dynamo.reset()
                run = torch.compile(run, backend="tpu", fullgraph=True)
            return run(*there).cpu()

        return call

    return {name: moved(name) for name in FUNCTIONS}


def test_the_committed_build_is_what_the_sources_make() -> None:
    assert differences(REPO) == []


def test_metadata_and_digest_are_what_kernels_expects(tmp_path: Path) -> None:
    for path in VARIANT.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    metadata = Metadata.read_from_file(tmp_path / "metadata.json")
    assert metadata.name.python_name == "fused_mlp"
    assert metadata.id.isidentifier()
    digest = metadata.digest
    digest.validate(Digest.hash_variant(digest.algorithm, tmp_path))
    (tmp_path / "activations.py").write_text("tampered = True\n")
    with pytest.raises(Exception, match=r"activations\.py"):
        digest.validate(Digest.hash_variant(digest.algorithm, tmp_path))


def test_the_operators_live_under_the_id_and_are_named_after_the_source(kernel: ModuleType) -> None:
    assert kernel.__all__ == list(FUNCTIONS)
    for function in FUNCTIONS:
        namespace, name = kernel.op._OPERATORS[function]._qualname.split("::")
        assert namespace == kernel.__name__ == json.loads((VARIANT / "metadata.json").read_text())["id"]
        assert name.startswith(f"{function}_")


def test_every_activation_has_its_name_on_the_cpu(kernel: ModuleType) -> None:
    assert list(kernel.on_cpu.ACTIVATIONS) == list(ACTIVATIONS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_the_cpu_it_passes_the_whole_suite(kernel: ModuleType, dtype: torch.dtype) -> None:
    assert run_suite(on_cpu(kernel), all_probes(dtype)) == []


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "name", ["qwen3-8b/decode/small", "glm-4-9b/prefill/small", "gpt2-xl/prefill/small", "starcoder2-3b/decode-8/small"]
)
def test_on_the_tpu(kernel: ModuleType, name: str, compiled: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert check_probe(on_tpu(kernel, compiled), case_probe(case(name), dtype)) is None


@pytest.mark.parametrize(
    "probe", [probe for probe in edge_probes(torch.bfloat16) if "limit" in probe.name], ids=lambda probe: probe.name
)
def test_features_on_the_tpu(kernel: ModuleType, probe) -> None:
    assert check_probe(on_tpu(kernel), probe) is None


def test_strided_inputs_and_one_compilation_for_any_rows_of_one_shape(kernel: ModuleType) -> None:
    """The last token of a prompt is a view; other numbers are new data, not a new program."""
    torch._dynamo.reset()
    weights = [torch.randn(48, 64), torch.randn(48, 64), torch.randn(64, 48)]
    there = [weight.to("tpu") for weight in weights]
    call = torch.compile(lambda *tensors: kernel.gated_mlp(*tensors, activation="silu"), backend="tpu", fullgraph=True)
    counts = []
    for _ in range(3):
        x = torch.randn(2, 5, 64).to("tpu")[:, -1:]
        got = call(x, *there).cpu()
        wanted = kernel.gated_mlp(x.cpu(), *weights, activation="silu")
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)
        counts.append(emulator.compilations())
    assert counts[1] == counts[2]


def test_the_fakes_need_no_jax_and_take_symbolic_shapes(kernel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real = torch.empty(2, 5, 64)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(real, static_shapes=False)
        wide, narrow = torch.empty(48, 64), torch.empty(32, 48)
        gated = kernel.op._OPERATORS["gated_mlp"](x, wide, wide, narrow, activation="silu")
        plain = kernel.op._OPERATORS["mlp"](x, wide, narrow, activation="silu")
        turned = kernel.op._OPERATORS["mlp"](x, wide.T, narrow.T, activation="silu", transposed=True)
    for out in (gated, plain, turned):
        assert isinstance(out.shape[1], torch.SymInt)
        assert tuple(map(int, out.shape)) == (2, 5, 32)


GOOD = {"x": torch.zeros(3, 8), "gate": torch.zeros(16, 8), "up": torch.zeros(16, 8), "down": torch.zeros(4, 16)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(0, 8)}, "x [..., H] with a row at least"),
        ({"gate": torch.zeros(16, 9)}, "gate [I, H] = [16, 8] for x of shape (3, 8); got (16, 9)"),
        ({"up": torch.zeros(8, 8)}, "up [I, H] = [16, 8]"),
        ({"down": torch.zeros(4, 8)}, "down [O, I] = [4, 16]"),
        ({"up": None}, "down [O, I] = [4, 8]"),
        ({"up": None, "gate": torch.zeros(15, 8)}, "[2I, H] without up"),
        ({"up": None, "down": torch.zeros(4, 8), "up_bias": torch.zeros(8)}, "no up_bias where up is None; got (8,)"),
        ({"down": torch.zeros(4, 16, dtype=torch.bfloat16)}, "of one dtype, float32 or bfloat16"),
        ({"gate_bias": torch.zeros(8)}, "gate_bias of shape [16] or None; got (8,)"),
        ({"down_bias": torch.zeros(16)}, "down_bias of shape [4] or None; got (16,)"),
        ({"activation": "swish"}, "an activation of silu, gelu, "),
        ({"rounding": "none"}, "rounding 'each' or 'last'; got 'none'"),
        ({"limit": 0.0}, "a limit above 0 or None; got 0.0"),
    ],
)
def test_bad_gated_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kernel.gated_mlp(**{**GOOD, "activation": "silu", **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transposed": True}, "up [H, I] = [8, 8] for x of shape (3, 8); got (16, 8)"),
        ({"down": torch.zeros(4, 8)}, "down [O, I] = [4, 16]"),
        ({"up": torch.zeros(8)}, "weights of two dimensions"),
        ({"up_bias": torch.zeros(8)}, "up_bias of shape [16] or None; got (8,)"),
        ({"x": torch.zeros(3, 8, dtype=torch.float16)}, "of one dtype, float32 or bfloat16"),
    ],
)
def test_bad_plain_calls_are_told_what_is_wrong(kernel: ModuleType, change: dict[str, object], message: str) -> None:
    good = {"x": GOOD["x"], "up": GOOD["up"], "down": GOOD["down"], "activation": "gelu"}
    with pytest.raises(ValueError) as caught:
        kernel.mlp(**{**good, **change})
    assert message in str(caught.value)


def test_without_torch_tpu_it_imports_runs_on_the_cpu_and_says_what_is_missing() -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPO / "torch-ext")!r})
        import torch
        from fused_mlp import gated_mlp, mlp
        assert "jax" not in sys.modules
        x, weight = torch.ones(2, 8), torch.ones(8, 8)
        print(mlp(x, weight, weight, activation="relu2").sum().item())
        try:
            gated_mlp(x.to("meta"), *[weight.to("meta")] * 3, activation="silu")
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
    assert float(total) == 2 * 8 * 8 * 64
    assert "no implementation for tensors on `meta`" in error[0]
    assert "torch has no `torch.tpu`" in "\n".join(error)

"""capture(): the programs for a TPU, without running them; they compile with libtpu elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import torch

from tpu_kernels import emulator
from tpu_kernels.lab.programs import Program, compile_programs

TOPOLOGY = "v5e:1x1"


@pytest.fixture(scope="module")
def doubled() -> Callable[[torch.Tensor], torch.Tensor]:
    from jax.experimental import pallas as pl

    def kernel(x_ref: jax.Array, out_ref: jax.Array) -> None:
        out_ref[...] = x_ref[...] * 2

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    operator: Callable[[torch.Tensor], torch.Tensor] = torch.tpu.pallas.jax_op("tpu_kernels_tests::twice", call)
    return operator


def _memory() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_eager_op_is_captured_and_does_not_run() -> None:
    x = torch.ones(3, 5).to("tpu")
    x.cpu()
    before = emulator.compilations(), emulator.executions()
    with emulator.capture() as programs:
        y = torch.tanh(x)
        assert y.shape == (3, 5)
        assert y.cpu().tolist() == torch.zeros(3, 5).tolist()
    assert [program.name for program in programs] == ["tt_jit_tanh"]
    assert programs[0].stablehlo.startswith(b"ML\xefR")
    assert (emulator.compilations(), emulator.executions()) == before
    torch.testing.assert_close(torch.tanh(x).cpu(), torch.ones(3, 5).tanh())


def test_compiled_function_is_captured_with_its_kernel(doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = doubled(x @ x.mT @ x)
        return y.cumsum(0), y + 1

    step_compiled = torch.compile(step, backend="tpu", fullgraph=True, options={"name": "step"})
    x = torch.randn(8, 128)
    expected = step(x.to("tpu"))[1].cpu()
    torch.testing.assert_close(step_compiled(x.to("tpu"))[1].cpu(), expected)

    with emulator.capture() as programs:
        shapes = [tuple(part.shape) for part in step_compiled(x.to("tpu"))]
    assert shapes == [(8, 128), (8, 128)]
    (program,) = programs
    assert program.name.startswith("step_")
    # As a TPU gets it: the Mosaic kernel, and the scan that is decomposed only for the CPU.
    assert b"tpu_custom_call\0" in program.stablehlo
    assert b"chlo.scan\0" in program.stablehlo
    (compiled,) = compile_programs([Program("step", program.stablehlo, program.compile_options)], TOPOLOGY)
    assert compiled.error is None
    assert compiled.memory is not None and compiled.memory.output >= 2 * 8 * 128 * 4
    assert 'custom_call_target="tpu_custom_call"' in compiled.hlo

    torch.testing.assert_close(step_compiled(x.to("tpu"))[1].cpu(), expected)


def test_kernel_in_interpret_mode(doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(8, 256).to("tpu")
    for interpret in (True, False, True):
        with emulator.capture(interpret=interpret) as programs:
            doubled(x)
        (program,) = programs
        assert (b"tpu_custom_call\0" in program.stablehlo) is not interpret


def test_flash_attention_of_torch_tpu_is_captured() -> None:
    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = torch.ones(1, 4, 1024, 128, dtype=torch.bfloat16).to("tpu")
    with emulator.capture() as programs:
        torch.compile(attention, backend="tpu")(q)
    assert any(b"tpu_custom_call\0" in program.stablehlo for program in programs)
    assert attention(q).shape == q.shape


def test_large_weights_take_no_memory() -> None:
    before = _memory()
    with emulator.capture() as programs:
        with torch.device("meta"):
            model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(8)))
        model.to_empty(device="tpu")
        torch.compile(model, backend="tpu", options={"name": "large"})(torch.ones(1, 8192).to("tpu"))
        torch.nn.init.normal_(model[0].weight)
        # 2 GiB of weights, and a third as much again for one that is written.
        assert _memory() - before < 100 << 20
    assert any(program.name.startswith("large_") for program in programs)


def test_capture_that_runs() -> None:
    x = torch.randn(4, 4)
    before = emulator.compilations()
    with emulator.capture(run=True) as programs:
        got = torch.compile(lambda t: t @ t, backend="tpu")(x.to("tpu")).cpu()
    torch.testing.assert_close(got, x @ x)
    assert emulator.compilations() - before == len(programs) > 0


def test_random_numbers_go_on_as_if_nothing_had_been_captured() -> None:
    torch.manual_seed(5)
    expected = torch.randn(4, device="tpu").cpu()
    torch.manual_seed(5)
    with emulator.capture():
        torch.randn(4, device="tpu")
    assert torch.equal(torch.randn(4, device="tpu").cpu(), expected)


def test_tensor_written_inside_stays_usable() -> None:
    with emulator.capture():
        y = torch.ones(6).to("tpu") * 3
    assert (y + 1).cpu().tolist() == [1.0] * 6


def test_error_inside_leaves_the_device_working() -> None:
    def interrupted() -> None:
        with emulator.capture():
            torch.ones(2).to("tpu").exp()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (torch.ones(2).to("tpu") + 1).cpu().tolist() == [2.0, 2.0]

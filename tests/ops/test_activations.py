"""The activations of specs and kernels are those of transformers, and their JAX twins are the same numbers."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from transformers.activations import ACT2FN

from tpu_kernels.lab.aot import AotJob, compile_jobs
from tpu_kernels.lab.jax_source import HUB_KERNELS, load_source
from tpu_kernels.ops.activations import ACTIVATIONS

SOURCE = HUB_KERNELS / "fused-mlp" / "torch-ext" / "fused_mlp" / "activations.py"
TWIN = load_source(SOURCE)
IN_TRANSFORMERS = {
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
    "gelu": ("gelu", "gelu_python"),
    "silu": ("silu", "swish"),
    "identity": ("linear",),
}
HAVE_PARAMETERS = {"prelu", "xielu"}


def points() -> torch.Tensor:
    """float32: a fine grid over what an activation bends, and values far outside of it."""
    far = torch.tensor([-3e38, -1e4, -200.0, -88.0, -30.0, 30.0, 88.0, 200.0, 1e4])
    return torch.cat([torch.linspace(-12, 12, 4087), far])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_is_what_transformers_computes(name: str) -> None:
    x = points().double()
    for theirs in IN_TRANSFORMERS.get(name, (name,)):
        torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[theirs](x), rtol=1e-9, atol=1e-9)


def test_nothing_of_transformers_is_missing_but_what_has_parameters() -> None:
    known = {theirs for name in ACTIVATIONS for theirs in IN_TRANSFORMERS.get(name, (name,))}
    assert set(ACT2FN) - known == HAVE_PARAMETERS


def test_the_twin_has_the_same_names() -> None:
    assert list(TWIN.ACTIVATIONS) == list(ACTIVATIONS)
    with pytest.raises(ValueError, match=r"one of silu, gelu, .*; got 'swish'"):
        TWIN.activate("swish", np.zeros(1, np.float32))


@pytest.mark.parametrize("place", ["jax", "pallas"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_twin_gives_the_same_numbers(name: str, place: str) -> None:
    x = points().reshape(8, -1)
    with jax.default_device(jax.devices("cpu")[0]), pltpu.force_tpu_interpret_mode(True):
        call = in_a_kernel if place == "pallas" else TWIN.activate
        got = np.asarray(jax.jit(call, static_argnums=0)(name, x.numpy())).astype(np.float64)
    wanted = ACTIVATIONS[name](x.double()).numpy()
    inside = np.abs(x.numpy()) < 1e18  # beyond, a square is infinite in float32 alone
    size = np.maximum(np.maximum(1.0, np.abs(x.numpy())), np.abs(wanted))
    assert np.max((np.abs(got - wanted) / size)[inside]) < 1e-6
    assert not np.isnan(got).any()


def in_a_kernel(name: str, x: jax.Array) -> jax.Array:
    def kernel(source, target) -> None:
        target[...] = TWIN.activate(name, source[...])

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


ONE_KERNEL = f"""
import sys
from pathlib import Path
import jax
from jax.experimental import pallas as pl
from tpu_kernels.lab.jax_source import load_source

TWIN = load_source(Path({str(SOURCE)!r}))

def call(x: jax.Array, *, name: str) -> jax.Array:
    def kernel(source, target):
        target[...] = TWIN.activate(name, source[...])

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


@pytest.mark.parametrize("generation", ["v5e", "v6e", "tpu7x"])
def test_the_twin_compiles_inside_of_a_kernel(generation: str, tmp_path) -> None:
    kernel = tmp_path / "one_kernel.py"
    kernel.write_text(ONE_KERNEL)
    jobs = [AotJob(name, kernel, "call", (((16, 256), "float32"),), {"name": name}) for name in ACTIVATIONS]
    assert {result.job.name: result.error for result in compile_jobs(jobs, generation) if not result.ok} == {}


def test_relu_squared_bends_at_zero() -> None:
    x = torch.tensor([-2.0, -0.0, 3.0])
    assert ACTIVATIONS["relu2"](x).tolist() == [0.0, 0.0, 9.0]
    assert ACTIVATIONS["gelu"](torch.tensor(1.0)).item() == pytest.approx(0.5 * (1 + math.erf(math.sqrt(0.5))))

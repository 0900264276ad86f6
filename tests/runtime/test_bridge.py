"""Which chip a program runs on, and what a model weighs."""

from __future__ import annotations

import pytest
import torch
from torch_tpu._internal.utils import hardware

from tpu_kernels.chips import chip
from tpu_kernels.runtime.bridge import current_chip, device_bytes, generation_of
from tpu_kernels.specs.vocabulary import GENERATIONS


def test_every_name_that_torch_tpu_gives_a_current_chip_is_known() -> None:
    names = {version.value for version in hardware.TpuVersion} - {"TPU"}
    known = {name: generation_of(name) for name in names}
    assert known == {"TPU v4": "v4", "TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e", "TPU v7": "tpu7x"}
    assert generation_of("TPU v5 lite") == "v5e" and generation_of("TPU v6 lite") == "v6e"
    assert generation_of("Cloud TPU of tomorrow") is None


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_of_the_specs_is_a_chip(generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generation_of(chip(generation).device_kind) == generation
    monkeypatch.setenv("TPU_KERNELS_CHIP", generation)
    current = current_chip()
    assert current is not None and current.name == generation


def test_the_emulator_plays_a_v5e(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_KERNELS_CHIP", raising=False)
    current = current_chip()
    assert current is not None and current.name == "v5e"


def test_shared_weights_count_once_and_those_on_the_host_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)).to("tpu")
    model[1].weight = model[0].weight
    model.append(torch.nn.Linear(4, 4))
    assert device_bytes(model) == 8 * 8 * 4

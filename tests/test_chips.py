from __future__ import annotations

import dataclasses

import pytest

from tpu_kernels.chips import CHIPS, ChipInfo, chip


def test_every_figure_has_a_source() -> None:
    figures = {field.name for field in dataclasses.fields(ChipInfo)} - {"name", "sources"}
    for info in CHIPS.values():
        assert set(info.sources) == figures
        assert all(info.sources.values())


@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e", "tpu7x"])
def test_clock_times_matrix_units_is_the_peak(name: str) -> None:
    """An independent check of clock and peak: both are of the same device."""
    per_cycle = {"v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2, "tpu7x": 4 * 256**2}[name]
    assert chip(name).clock_hz * per_cycle * 2 == pytest.approx(chip(name).peak_bf16_flops, rel=0.01)


def test_usable_memory_is_less_than_the_memory() -> None:
    for info in CHIPS.values():
        assert 0.9 * info.hbm_bytes < info.usable_hbm_bytes < info.hbm_bytes


def test_unknown_name_says_which_are_known() -> None:
    with pytest.raises(ValueError, match="v4, v5e, v5p, v6e, tpu7x") as caught:
        chip("v6")
    assert "Got:   'v6'" in str(caught.value)
    assert "did you mean 'v6e'?" in str(caught.value)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip("v5e").hbm_bytes = 1  # type: ignore[misc]

"""Collectives in optimized HLO, and the time that they take."""

from __future__ import annotations

import pytest

from tpu_kernels.chips import chip
from tpu_kernels.lab.cost.collectives import HOP, Collective, collective_of
from tpu_kernels.lab.cost.hlo import parse_hlo
from tpu_kernels.lab.cost.model_cost import by_group
from tpu_kernels.lab.cost.model_groups import StepGroups
from tpu_kernels.lab.cost.xla_time import program_cost

SHORT = 'backend_config={"collective_algorithm_config":{"emitter":"RotatedPincerShortEmitter"}}'
STEP = f"""HloModule step
ENTRY %main (x: bf16[8,128], w: bf16[128,4096]) -> bf16[8,4096] {{
  %x = bf16[8,128]{{1,0}} parameter(0)
  %w = bf16[128,4096]{{1,0}} parameter(1)
  %mm = bf16[8,4096]{{1,0:S(1)}} fusion(%x, %w), kind=kOutput
  %sum.1 = bf16[8,4096]{{1,0:S(1)}} all-reduce(%mm), replica_groups={{{{0,1,2,3}}}}, to_apply=%add, {SHORT}
  %begun = (bf16[2,4096]{{1,0:S(1)}}, bf16[8,4096]{{1,0}}) all-gather-start(%mm), replica_groups=[1,4]<=[4]
  %whole = bf16[8,4096]{{1,0}} all-gather-done(%begun)
  ROOT %out = bf16[8,4096]{{1,0}} fusion(%sum.1, %whole), kind=kLoop
}}
"""
ARRAY = 8 * 4096 * 2


def test_collectives_are_found() -> None:
    module = parse_hlo(STEP)
    found = {one.name: known for one in module.entry if (known := collective_of(module, one))}
    assert found == {
        "sum.1": Collective("all-reduce", 4, ARRAY, short=True),
        "begun": Collective("all-gather", 4, ARRAY),
    }


@pytest.mark.parametrize(
    ("collective", "hops", "link_bytes"),
    [
        (Collective("all-reduce", 2, 1200, short=True), 2, 1200),
        (Collective("all-reduce", 4, 1200, short=True), 3, 2400),
        (Collective("all-reduce", 4, 1200), 7, 900),
        (Collective("all-gather", 4, 1200), 4, 450),
        (Collective("reduce-scatter", 4, 1200), 4, 450),
        (Collective("all-to-all", 4, 1200), 3, 600),
        (Collective("collective-permute", 4, 1200), 2, 1200),
    ],
)
def test_hops_and_bytes_on_a_ring(collective: Collective, hops: int, link_bytes: int) -> None:
    assert (collective.hops, collective.link_bytes) == (hops, link_bytes)


def test_a_long_one_adds_while_pieces_are_under_way() -> None:
    v6e = chip("v6e")
    short, long = (Collective("all-reduce", 4, 90_000_000, short=short) for short in (True, False))
    assert short.seconds(v6e, busy=1e-3, stalled=1e-6) == pytest.approx(3 * HOP + 1e-6 + 1e-3 + 2e-3)
    assert long.seconds(v6e, busy=1e-3) == pytest.approx(7 * HOP + 1e-3)
    assert long.seconds(v6e) == pytest.approx(7 * HOP + 0.75e-3)


def test_a_step_waits_for_them() -> None:
    cost = program_cost(STEP, {}, chip("v6e"))
    seconds = {op.name: op.seconds for op in cost.ops}
    summed = Collective("all-reduce", 4, ARRAY, short=True).seconds(chip("v6e"))
    gathered = Collective("all-gather", 4, ARRAY).seconds(chip("v6e"))
    assert seconds["sum.1"] == pytest.approx(summed)
    assert seconds["begun"] == 0 and seconds["whole"] == pytest.approx(gathered)
    assert cost.seconds - cost.seconds_apart == pytest.approx(summed + gathered)
    groups = by_group(cost, StepGroups(parse_hlo(STEP)))
    assert groups["collectives"].seconds == pytest.approx(summed + gathered)
    assert groups["weights"].read_bytes == (128 * 4096 + 8 * 128) * 2

"""Schedules of small kernels, read and run: what can be worked out by hand comes out exactly."""

from __future__ import annotations

import pytest

from tests.lab.cost.compiled import job, only_kernel, scheduled
from tpu_kernels.chips import chip
from tpu_kernels.lab.cost.compiling import ScheduledJob
from tpu_kernels.lab.cost.schedule import Span, parse_schedule
from tpu_kernels.lab.cost.simulate import Trace, simulate
from tpu_kernels.lab.cost.timing import COPY_LATENCY, hbm_bandwidth, hbm_timing
from tpu_kernels.lab.cost.utilization import parse_utilization

GENERATIONS = ("v5e", "v6e", "tpu7x")
TILE_BYTES = 8 * 128 * 4  # one vector register of float32
WIDE = ((2048, 128), "float32")
JOBS = {
    "add_one": job("add_one", WIDE),
    "add_one, 4 times the rows": job("add_one", ((8192, 128), "float32")),
    "loops 5 x 7": job("nested_loops", ((8, 128), "float32"), outer=5, inner=7),
    "loops 6 x 7": job("nested_loops", ((8, 128), "float32"), outer=6, inner=7),
    "blocks": job("sum_of_blocks", WIDE, blocks=4),
    "copies, 3": job("counted_copies", ((4096, 128), "float32"), ((1, 1), "int32")),
    "copies, 30": job("counted_copies", ((4096, 128), "float32"), ((1, 1), "int32")),
}
MASK = [[1, 0, 0], [2, 1, 0], [2, 2, 1], [0, 3, 3], [0, 0, 1]]
JOBS["mask of words"] = job("masked_blocks", ((40, 384), "float32"), ((5, 3), "int32"))
JOBS["mask of bytes"] = job("masked_blocks", ((40, 384), "float32"), ((5, 3), "int8"))
STEERED = {"mask of words": {1: MASK}, "mask of bytes": {1: MASK}, "copies, 3": {1: [[2]]}, "copies, 30": {1: [[29]]}}


@pytest.fixture(scope="module", params=GENERATIONS)
def compiled(request: pytest.FixtureRequest) -> dict[str, ScheduledJob]:
    values = [STEERED.get(name, {}) for name in JOBS]
    return dict(zip(JOBS, scheduled(request.param, list(JOBS.values()), values), strict=True))


def run(result: ScheduledJob) -> Trace:
    dump = only_kernel(result)
    trace = simulate(dump.schedule, hbm_timing(result.chip), result.steering[result.job.function])
    assert trace.unknown_branches == 0
    return trace


def body_runs(trace: Trace, span: Span) -> int:
    """How often the last bundle of a loop's body ran."""
    return trace.runs[span.end - 1]


def test_one_step_has_no_loop_and_every_bundle_runs_once(compiled: dict[str, ScheduledJob]) -> None:
    schedule = only_kernel(compiled["add_one"]).schedule
    assert schedule.loops == () and schedule.steps_loop is None
    assert set(run(compiled["add_one"]).runs) == {1}


def test_a_kernel_worked_out_by_hand(compiled: dict[str, ScheduledJob]) -> None:
    """Four times the rows: 768 registers more to load and to store, at the rate of the slower of the two units."""
    small, large = compiled["add_one"], compiled["add_one, 4 times the rows"]
    tiles = 2048 * 128 * 4 // TILE_BYTES
    units = only_kernel(small).utilization
    capacity = dict(zip(units.units, units.capacity, strict=True))
    assert units.totals()["VSTORE"] == tiles <= units.totals()["VLOAD"]
    extra = run(large).busy_cycles - run(small).busy_cycles
    assert extra == pytest.approx(3 * tiles / min(capacity["VLOAD"], capacity["VSTORE"]), rel=0.02)


def test_time_and_bytes_of_a_kernel_by_hand(compiled: dict[str, ScheduledJob]) -> None:
    """In, compute, out: nothing overlaps in one step, whoever copies (on tpu7x XLA does, around the kernel)."""
    result = compiled["add_one"]
    cost = result.cost()
    size = 2048 * 128 * 4
    assert (cost.read_bytes, cost.written_bytes) == (size, size)
    copies = 2 * (COPY_LATENCY + size / hbm_bandwidth(result.chip))
    assert cost.seconds == pytest.approx(copies + run(result).busy_cycles / result.chip.clock_hz, rel=0.02)


def test_nested_loops(compiled: dict[str, ScheduledJob]) -> None:
    result = compiled["loops 5 x 7"]
    outer, inner = only_kernel(result).schedule.loops
    assert inner in outer and outer not in inner
    trace = run(result)
    assert (body_runs(trace, outer), body_runs(trace, inner)) == (5, 35)
    assert trace.runs[outer.start - 1] == 1
    longer = run(compiled["loops 6 x 7"])
    assert longer.busy_cycles - trace.busy_cycles == len(outer) + 6 * len(inner)


def test_a_pipeline_runs_its_regions_as_often_as_it_should(compiled: dict[str, ScheduledJob]) -> None:
    result = compiled["blocks"]
    schedule, trace = only_kernel(result).schedule, run(result)
    steps = schedule.steps_loop
    assert steps is not None and len(steps) > len(schedule) // 2
    # The pipeline turns four times for four blocks, and once or twice more to fill and to drain.
    assert body_runs(trace, steps) in (4, 5, 6)
    units = only_kernel(result).utilization
    exponentials = [row[units.units.index("EUP")] for row in units.rows]
    assert {trace.runs[at] for at, pushed in enumerate(exponentials) if pushed} == {1}
    regions = [region for region in schedule.regions if region in steps]
    assert any(trace.runs[region.start] < body_runs(trace, steps) for region in regions)
    assert result.cost().read_bytes == 2048 * 128 * 4


def test_prefetched_scalars_steer_loops(compiled: dict[str, ScheduledJob]) -> None:
    few, many = compiled["copies, 3"], compiled["copies, 30"]
    assert few.steering == {"counted_copies": {0: [3]}}
    assert many.steering == {"counted_copies": {0: [30]}}
    block = 64 * 128 * 4
    assert run(many).read_bytes - run(few).read_bytes == 27 * block
    (loop,) = only_kernel(many).schedule.loops
    assert body_runs(run(many), loop) == 30
    # Each copy is waited for before the next one starts.
    extra = run(many).cycles - run(few).cycles
    timing = hbm_timing(many.chip)
    waited = timing.latency_cycles + block / timing.bytes_per_cycle
    assert extra >= 27 * waited
    assert extra == pytest.approx(27 * (waited + len(loop)), rel=0.1)


@pytest.mark.parametrize("name", ["mask of words", "mask of bytes"])
def test_arrays_of_scalars_have_rows_and_narrow_elements(compiled: dict[str, ScheduledJob], name: str) -> None:
    schedule, trace = only_kernel(compiled[name]).schedule, run(compiled[name])
    entered = {trace.runs[region.start] for region in schedule.regions}
    assert 9 in entered  # as many blocks as are not 0


def test_without_its_scalars_a_loop_is_guessed_and_says_so(compiled: dict[str, ScheduledJob]) -> None:
    result = compiled["copies, 3"]
    assert simulate(only_kernel(result).schedule, hbm_timing(result.chip)).unknown_branches > 0


def test_vmem_is_at_least_scratch_and_two_of_each_block(compiled: dict[str, ScheduledJob]) -> None:
    block = 512 * 128 * 4  # in, out, and a sum of the same size
    assert compiled["blocks"].vmem_bytes == 2 * block + 2 * block + block
    assert compiled["copies, 3"].vmem_bytes == 2 * 64 * 128 * 4 + 64 * 128 * 4


def test_every_bundle_has_its_row_of_utilization(compiled: dict[str, ScheduledJob]) -> None:
    for result in compiled.values():
        dump = only_kernel(result)
        assert len(dump.schedule) == len(dump.utilization.rows)
        assert max(dump.utilization.shares().values()) <= 1.0


def test_text_that_is_no_dump() -> None:
    with pytest.raises(ValueError, match="bundle 0x2 where number 1 should be"):
        parse_schedule("0 : { %s1_s1 = smov.u32 1 }\n0x2 : {}\n")
    with pytest.raises(ValueError, match="no table of utilization"):
        parse_utilization("nothing")


def test_clock_of_the_timing() -> None:
    timing = hbm_timing(chip("v5e"))
    assert timing.bytes_per_cycle == pytest.approx(0.9 * 819 / 1.5)
    assert timing.latency_cycles == pytest.approx(630)

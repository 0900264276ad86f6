"""Optimized HLO as text: instructions, bytes in HBM, and the time of programs written by hand."""

from __future__ import annotations

import pytest

from tpu_kernels.chips import chip
from tpu_kernels.lab.cost.hlo import Array, arrays, parse_hlo
from tpu_kernels.lab.cost.timing import COPY_LATENCY, hbm_bandwidth
from tpu_kernels.lab.cost.xla_time import program_cost

V5E = chip("v5e")
MODULE = """HloModule m, is_scheduled=true

%fused_computation (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  ROOT %add.9 = bf16[8,128]{1,0} add(%p, %p)
}

ENTRY %main.1 (k: bf16[1024,1024], x: f32[256,1024]) -> (bf16[8,128], s32[4]) {
  %k = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0), sharding={replicated}, metadata={op_name="args[0]"}
  %x = f32[256,1024]{1,0:T(8,128)} parameter(1)
  %copy-start = (bf16[1024,1024]{1,0:T(8,128)S(1)}, bf16[1024,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%k)
  %fusion.1 = f32[256,1024]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused_computation, """ + (
    """metadata={op_name="jit(f)/mul (a=b)"}, backend_config={"window_config":{"iteration_bounds":["4","2"]}}
  %copy-done = bf16[1024,1024]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %b = bf16[8,131072]{0,1:S(1)} bitcast(%copy-done)
  %fusion.2 = (bf16[8,128]{1,0:T(8,128)(2,1)}, s32[4]{0:T(128)S(1)}) fusion(%b, %fusion.1), kind=kOutput, calls=%f
  %g = bf16[8,128]{1,0} get-tuple-element(%fusion.2), index=0
  ROOT %t = (bf16[8,128]{1,0}, s32[4]{0}) tuple(%g)
}
"""
)


def test_arrays_know_their_bytes_and_their_memory() -> None:
    assert arrays("(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, pred[3]{0}, s4[16], f8e4m3fn[2,2], u32[]{:S(2)})") == (
        Array("bf16", (8, 128), 1),
        Array("pred", (3,)),
        Array("s4", (16,)),
        Array("f8e4m3fn", (2, 2)),
        Array("u32", (), 2),
    )
    assert [array.bytes for array in arrays("bf16[8,128] pred[3] s4[16] f8e4m3fn[2,2] f64[2]")] == [2048, 3, 8, 4, 16]
    assert Array("bf16", (8, 128), 1).hbm_bytes == 0


def test_instructions() -> None:
    module = parse_hlo(MODULE)
    assert [one.name for one in module.entry][2:5] == ["copy-start", "fusion.1", "copy-done"]
    fusion = module.entry[3]
    assert (fusion.opcode, fusion.operands, fusion.called) == ("fusion", ("x",), ("fused_computation",))
    assert (fusion.op_name, fusion.iterations, fusion.trips) == ("jit(f)/mul (a=b)", 8, 1)
    assert [one.name for one in module.computations["fused_computation"]] == ["p", "add.9"]


def test_bytes_are_those_in_hbm() -> None:
    module = parse_hlo(MODULE)
    weights, activations = 2 * 1024 * 1024, 4 * 256 * 1024
    moved = {one.name: module.hbm_bytes(one) for one in module.entry if module.hbm_bytes(one)}
    assert moved == {"copy-start": weights, "fusion.1": 2 * activations, "fusion.2": activations + 2048}


def test_a_copy_ahead_runs_beside_what_follows() -> None:
    cost = program_cost(MODULE, {}, V5E)
    bandwidth = hbm_bandwidth(V5E)
    weights, activations = 2 * 1024 * 1024, 4 * 256 * 1024
    assert cost.hbm_bytes == weights + 3 * activations + 2048
    # All share one HBM: first the two arrays of fusion.1, then the copy, then what fusion.2 moves.
    assert cost.seconds == pytest.approx(cost.hbm_bytes / bandwidth + COPY_LATENCY)
    assert [op.name for op in cost.without_schedule] == ["fusion.1", "fusion.2"]


def test_bodies_of_loops_count_as_often_as_they_run() -> None:
    body = "%body (p: f32[256]) -> f32[256] {\n  %p = f32[256]{0} parameter(0)\n  ROOT %n = f32[256]{0} negate(%p)\n}\n"
    loop = (
        "ENTRY %main (a: f32[256]) -> f32[256] {\n  %a = f32[256]{0} parameter(0)\n  ROOT %w = f32[256]{0} while(%a), "
        'condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"12"}}\n}\n'
    )
    cost = program_cost(body + loop, {}, V5E)
    assert cost.hbm_bytes == 12 * 2 * 1024
    assert cost.ops[0].times == 12


def test_text_that_is_no_module() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        parse_hlo("HloModule empty")

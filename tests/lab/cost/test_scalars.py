"""The scalar unit, instruction by instruction."""

from __future__ import annotations

from tpu_kernels.lab.cost.scalars import ScalarUnit, parse_instruction


def run(unit: ScalarUnit, *texts: str) -> int | None:
    """The value that the last instruction writes."""
    value = None
    for text in texts:
        instruction = parse_instruction(text)
        assert instruction is not None
        value = unit.evaluate(instruction)
        unit.write(instruction.target, value)
    return value


def test_the_high_half_of_a_product_divides_by_three() -> None:
    for number, third in ((0, 0), (11, 3), (12, 4), (2**31 - 1, (2**31 - 1) // 3)):
        unit = ScalarUnit()
        high = run(unit, f"%s1_s1 = smov.u32 {number}", "%s2_s2 = smulhi.u32 2863311531, %s1_s1")
        assert high is not None
        assert high >> 1 == third


def test_a_loop_variable_follows_its_register_where_another_name_writes_it() -> None:
    unit = ScalarUnit()
    run(unit, "%s10_s0 = smov.u32 5", "%s12_s0 = sphi %s10_s0, %s11_s0")
    assert unit.registers["s12_s0"] == 5
    run(unit, "%s99_s0 = sadd.s32 1, %s12_s0")  # the loop's own name, s11_s0, is written behind the loop
    assert run(unit, "%s12_s0 = sphi %s10_s0, %s11_s0") == 6


def test_a_loop_variable_takes_what_was_written_last() -> None:
    unit = ScalarUnit()
    run(unit, "%s10_s0 = smov.u32 5", "%s12_s0 = sphi %s10_s0, %s11_s0", "%s11_s0 = sadd.s32 2, %s12_s0")
    assert run(unit, "%s12_s0 = sphi %s10_s0, %s11_s0") == 7

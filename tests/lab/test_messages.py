"""The compiler's messages in one line."""

from __future__ import annotations

from tpu_kernels.lab.messages import one_line

BLOCK = """ValueError: The Pallas TPU lowering currently requires that the last two dimensions of your block shape are \
divisible by 8 and 128 respectively, or be equal to the respective dimensions of the overall array. Block spec for \
args[0] in pallas_call k at kernel.py:6 has block shape (Blocked(block_size=100), Blocked(block_size=100)), array \
shape (1000, 1000), and index_map { lambda ; a:i32[] b:i32[]. let  in (a, b) }, in memory space <MemorySpace.DEFAULT>.
See details at https://docs.jax.dev/en/latest/pallas/grid_blockspec.html#pallas-blockspec"""


def test_the_first_paragraph_on_one_line() -> None:
    message = "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out\nof  memory\nSee https://openxla.org\n\nmore"
    assert one_line(message) == "Ran out of memory"


def test_a_long_message_is_cut() -> None:
    assert one_line("x" * 500) == "x" * 239 + "…"


def test_a_block_that_lowering_refuses_is_named_with_what_it_must_be() -> None:
    assert one_line(BLOCK) == (
        "block shape (100, 100) of args[0] in pallas_call k at kernel.py:6 does not tile the array (1000, 1000):"
        " its last two sizes must be multiples of 8 and 128, or the array's own"
    )

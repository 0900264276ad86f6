"""The compiler's messages in one line."""

from __future__ import annotations

from tpu_kernels.lab.memory import hbm_shortage
from tpu_kernels.lab.messages import one_line

BLOCK = """ValueError: The Pallas TPU lowering currently requires that the last two dimensions of your block shape are \
divisible by 8 and 128 respectively, or be equal to the respective dimensions of the overall array. Block spec for \
args[0] in pallas_call k at kernel.py:6 has block shape (Blocked(block_size=100), Blocked(block_size=100)), array \
shape (1000, 1000), and index_map { lambda ; a:i32[] b:i32[]. let  in (a, b) }, in memory space <MemorySpace.DEFAULT>.
See details at https://docs.jax.dev/en/latest/pallas/grid_blockspec.html#pallas-blockspec"""

SCOPED = """JaxRuntimeError: RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %double.1 = bf16[4,128]{1,0} custom-call(%x.1), \
custom_call_target="tpu_custom_call". Scoped allocation with size 128.00M and limit 16.00M exceeded scoped vmem limit \
by 112.00M. It should not be possible to run out of scoped vmem -
See https://openxla.org/xla/errors/error_1001 for more details."""
HBM = """ResourceExhausted: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO \
temporaries (16.75G) exceeds available HBM (15.75G). HLO module: tt_jit_step."""


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


def test_a_kernel_that_overflows_its_vmem_is_named_with_sizes() -> None:
    assert one_line(SCOPED) == (
        "kernel double overflows VMEM: its blocks and scratch take 128.00M, 112.00M more than its limit of 16.00M"
        " (vmem_limit_bytes)"
    )


def test_a_program_that_overflows_hbm() -> None:
    assert one_line(HBM) == (
        "CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries (16.75G) exceeds"
        " available HBM (15.75G)"
    )
    assert hbm_shortage(HBM) == 2**30
    assert hbm_shortage("Used 16.5G of 15.75G hbm. Exceeded hbm capacity by 768.00M.") == 3 * 2**28
    assert hbm_shortage(SCOPED) is None

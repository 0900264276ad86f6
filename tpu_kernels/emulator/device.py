"""Make XLA's CPU plugin pass for a TPU, and count what goes through it."""

from __future__ import annotations

import ctypes
import re
from math import prod

from tpu_kernels.emulator import programs
from tpu_kernels.emulator.pjrt import UNIMPLEMENTED, Function, Hook, Original, PjrtApi
from tpu_kernels.emulator.state import STATE

# PJRT_TpuTopology_Extension: type, bytes, function pointers, and those that answer a plain count
# (of processes, chips, cores or devices), which is 1 for everything here.
_TOPOLOGY_TYPE = 16
_TOPOLOGY_SIZE = 280
_TOPOLOGY_FUNCTIONS = 32
_TOPOLOGY_COUNTS = range(7, 16)
_COUNT_OFFSET = 16


def install(api: PjrtApi) -> None:
    """Hook everything that a TPU answers otherwise than a CPU, and everything that is counted."""
    api.hook("PJRT_Client_Create", _without_tpu_options(api))
    api.hook("PJRT_Client_Compile", _compile(api))
    api.hook("PJRT_LoadedExecutable_Execute", _execute)
    api.hook("PJRT_Client_BufferFromHostBuffer", _from_host(api))
    api.hook("PJRT_AsyncHostToDeviceTransferManager_TransferData", _transfer_data(api))
    functions: dict[int, Function] = {
        index: _refuse_topology(api, index) for index in range(_TOPOLOGY_FUNCTIONS)
    }
    functions.update(dict.fromkeys(_TOPOLOGY_COUNTS, _answer_one))
    api.prepend_extension(_TOPOLOGY_TYPE, _TOPOLOGY_SIZE, functions)


def _without_tpu_options(api: PjrtApi) -> Hook:
    def create(original: Original, address: int) -> int | None:
        api.struct("PJRT_Client_Create_Args", address).num_options = 0
        return original(address)

    return create


def _compile(api: PjrtApi) -> Hook:
    def compile_program(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_Client_Compile_Args", address)
        program = api.struct("PJRT_Program", arguments.program)
        code = ctypes.string_at(program.code, program.code_size)
        refusal = programs.refusal(code)
        if refusal is not None:
            return api.error(UNIMPLEMENTED, refusal)
        STATE.compilations += 1
        lowered = programs.for_cpu(code)
        if lowered == code:
            return original(address)
        given = program.code, program.code_size
        buffer = ctypes.create_string_buffer(lowered, len(lowered))
        program.code, program.code_size = ctypes.addressof(buffer), len(lowered)
        try:
            return original(address)
        finally:
            program.code, program.code_size = given

    return compile_program


def _execute(original: Original, address: int) -> int | None:
    STATE.executions += 1
    return original(address)


def _from_host(api: PjrtApi) -> Hook:
    bits = _bits_per_element(api)

    def from_host(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_Client_BufferFromHostBuffer_Args", address)
        elements = prod(_dimensions(arguments.dims, arguments.num_dims))
        STATE.transferred += (elements * bits[arguments.type] + 7) // 8
        return original(address)

    return from_host


def _dimensions(address: int | None, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if address and count else []


def _bits_per_element(api: PjrtApi) -> dict[int, int]:
    """Bits of one element of each PJRT_Buffer_Type; the name tells (F32, BF16, S4, F8E5M2, PRED)."""
    prefix = "PJRT_Buffer_Type_"
    types = {
        name.removeprefix(prefix): value for name, value in vars(api.abi).items() if name.startswith(prefix)
    }
    widths = {name: re.match(r"[A-Z]+(\d+)", name) for name in types}
    bits = {types[name]: int(width[1]) for name, width in widths.items() if width}
    return {types["INVALID"]: 0, types["TOKEN"]: 0, types["PRED"]: 8, **bits}


def _transfer_data(api: PjrtApi) -> Hook:
    def transfer_data(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_AsyncHostToDeviceTransferManager_TransferData_Args", address)
        STATE.transferred += arguments.transfer_size
        return original(address)

    return transfer_data


def _answer_one(address: int) -> int | None:
    ctypes.c_int32.from_address(address + _COUNT_OFFSET).value = 1
    return None


def _refuse_topology(api: PjrtApi, index: int) -> Function:
    def refuse(address: int) -> int | None:
        text = f"function {index} of the TPU topology: the emulated TPU has one chip and no topology"
        return api.error(UNIMPLEMENTED, text)

    return refuse

"""Make XLA's CPU plugin pass for a TPU, and count what goes through it."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

from tpu_kernels.emulator import programs
from tpu_kernels.emulator.pjrt import FAILED_PRECONDITION, UNIMPLEMENTED, Function, Hook, Original, PjrtApi
from tpu_kernels.emulator.recording import record
from tpu_kernels.emulator.skipping import skip_execution
from tpu_kernels.emulator.state import STATE

_ONLY_CAPTURED = (
    "this program was captured (tpu_kernels.emulator.capture), not compiled, so it cannot run; call the function "
    "again outside the capture, which compiles it anew"
)

# PJRT_TpuTopology_Extension: type, bytes, function pointers, and those that answer a plain count
# (of processes, chips, cores or devices), which is 1 for everything here.
_TOPOLOGY_TYPE = 16
_TOPOLOGY_SIZE = 280
_TOPOLOGY_FUNCTIONS = 32
_TOPOLOGY_COUNTS = range(7, 16)
_COUNT_OFFSET = 16

# How many devices the CPU plugin's client has.
_DEVICES_OPTION = b"cpu_device_count"

_POINTER = ctypes.sizeof(ctypes.c_void_p)


def install(api: PjrtApi, rank: int = 0, ranks: int = 1) -> None:
    """Hook everything that a TPU answers otherwise than a CPU, and everything that is counted.

    With `ranks` above 1 there is a device for each of them, and device `rank` is the one of this process.
    """
    api.hook("PJRT_Client_Create", _without_tpu_options(api, ranks))
    if ranks > 1:
        api.hook("PJRT_Client_AddressableDevices", _own_device(api, rank))
    compiler = _Compiler(api)
    api.hook("PJRT_Client_Compile", compiler.compile)
    api.hook("PJRT_LoadedExecutable_Execute", compiler.execute)
    api.hook("PJRT_LoadedExecutable_Destroy", compiler.destroy)
    api.hook("PJRT_Client_BufferFromHostBuffer", _from_host(api))
    api.hook("PJRT_AsyncHostToDeviceTransferManager_TransferData", _transfer_data(api))
    functions: dict[int, Function] = {index: _refuse_topology(api, index) for index in range(_TOPOLOGY_FUNCTIONS)}
    functions.update(dict.fromkeys(_TOPOLOGY_COUNTS, _answer_one))
    api.prepend_extension(_TOPOLOGY_TYPE, _TOPOLOGY_SIZE, functions)


def _without_tpu_options(api: PjrtApi, devices: int) -> Hook:
    def create(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_Client_Create_Args", address)
        arguments.num_options = 0
        if devices > 1:
            name = ctypes.create_string_buffer(_DEVICES_OPTION)
            option = api.arguments(
                "PJRT_NamedValue",
                name=ctypes.addressof(name),
                name_size=len(_DEVICES_OPTION),
                type=api.abi.PJRT_NamedValue_kInt64,
                int64_value=devices,
                value_size=1,
            )
            arguments.create_options, arguments.num_options = ctypes.addressof(option), 1
        error = original(address)
        api.client = arguments.client
        return error

    return create


def _own_device(api: PjrtApi, rank: int) -> Hook:
    """A process has one chip of a slice; the CPU plugin would give it all its devices."""

    def addressable(original: Original, address: int) -> int | None:
        error = original(address)
        if not error:
            arguments = api.struct("PJRT_Client_AddressableDevices_Args", address)
            api.own_device = ctypes.c_void_p.from_address(arguments.addressable_devices + rank * _POINTER).value
            arguments.addressable_devices += rank * _POINTER
            arguments.num_addressable_devices = 1
        return error

    return addressable


class _Compiler:
    """Compiles and runs programs; inside a capture it keeps them and runs nothing."""

    def __init__(self, api: PjrtApi) -> None:
        self._api = api
        # Executables (addresses) that stand in for a program that was captured, not compiled, and its number.
        self._stand_ins: dict[int, int] = {}

    def compile(self, original: Original, address: int) -> int | None:
        arguments = self._api.struct("PJRT_Client_Compile_Args", address)
        program = self._api.struct("PJRT_Program", arguments.program)
        code = ctypes.string_at(program.code, program.code_size)
        recorder = STATE.recorder
        if recorder is not None:
            options = ctypes.string_at(arguments.compile_options, arguments.compile_options_size)
            number, stand_in = record(recorder, code, options)
            if not recorder.run:
                error = self._compile(original, address, program, stand_in)
                if not error:
                    self._stand_ins[arguments.executable] = number
                return error
        refusal = programs.refusal(code)
        if refusal is not None:
            return self._api.error(UNIMPLEMENTED, refusal)
        STATE.add(compilations=1)
        return self._compile(original, address, program, programs.for_cpu(code))

    def execute(self, original: Original, address: int) -> int | None:
        recorder = STATE.recorder
        if recorder is not None and not recorder.run:
            arguments = self._api.struct("PJRT_LoadedExecutable_Execute_Args", address)
            if arguments.executable in self._stand_ins:
                recorder.programs.runs.append(self._stand_ins[arguments.executable])
            skip_execution(self._api, arguments)
            return None
        if self._stand_ins:
            arguments = self._api.struct("PJRT_LoadedExecutable_Execute_Args", address)
            if arguments.executable in self._stand_ins:
                return self._api.error(FAILED_PRECONDITION, _ONLY_CAPTURED)
        STATE.add(executions=1)
        return original(address)

    def destroy(self, original: Original, address: int) -> int | None:
        if self._stand_ins:
            arguments = self._api.struct("PJRT_LoadedExecutable_Destroy_Args", address)
            self._stand_ins.pop(arguments.executable, None)
        return original(address)

    def _compile(self, original: Original, address: int, program: Any, code: bytes) -> int | None:
        """Compile `code` in the place of what the caller's `program` struct holds."""
        given = program.code, program.code_size
        buffer = ctypes.create_string_buffer(code, len(code))
        program.code, program.code_size = ctypes.addressof(buffer), len(code)
        try:
            return original(address)
        finally:
            program.code, program.code_size = given


def _from_host(api: PjrtApi) -> Hook:
    def from_host(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_Client_BufferFromHostBuffer_Args", address)
        elements = prod(_dimensions(arguments.dims, arguments.num_dims))
        STATE.add(transferred=(elements * api.element_bits[arguments.type] + 7) // 8)
        return original(address)

    return from_host


def _dimensions(address: int | None, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if address and count else []


def _transfer_data(api: PjrtApi) -> Hook:
    def transfer_data(original: Original, address: int) -> int | None:
        arguments = api.struct("PJRT_AsyncHostToDeviceTransferManager_TransferData_Args", address)
        STATE.add(transferred=arguments.transfer_size)
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

"""Answer a request to run a program with buffers of the right shapes, without running it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from tpu_kernels.emulator.pjrt import PjrtApi

# Bytes up to which an output is made of zeros.
_ZEROED = 1 << 20

# PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
_COPIED_DURING_CALL = 0


def skip_execution(api: PjrtApi, arguments: Any) -> None:
    """Fill the outputs that a PJRT_LoadedExecutable_Execute_Args asks for, for its first device.

    Small outputs are zeros. Large ones are allocated and never written: the system gives no memory
    to pages that nobody touches, so gigabytes of them cost next to nothing, and their values mean
    nothing.
    """
    loaded = arguments.executable
    device = arguments.execute_device or api.own_device or _first_device(api, loaded)
    outputs = ctypes.cast(arguments.output_lists, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
    with _executable(api, loaded) as executable:
        for index, (kind, shape) in enumerate(_outputs(api, executable)):
            outputs[0][index] = _buffer(api, device, kind, shape)
    if arguments.device_complete_events:
        event = api.call("PJRT_Event_Create").event
        api.call("PJRT_Event_Set", event=event)
        ctypes.cast(arguments.device_complete_events, ctypes.POINTER(ctypes.c_void_p))[0] = event


def _buffer(api: PjrtApi, device: int | None, kind: int, shape: list[int]) -> int:
    dimensions = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    size = (prod(shape) * api.element_bits[kind] + 7) // 8
    if size > _ZEROED:
        large = api.call(
            "PJRT_Client_CreateUninitializedBuffer",
            client=api.client,
            shape_dims=ctypes.addressof(dimensions),
            shape_num_dims=len(shape),
            shape_element_type=kind,
            device=device,
        )
        return int(large.buffer)
    zeros = ctypes.create_string_buffer(max(size, 1))
    small = api.call(
        "PJRT_Client_BufferFromHostBuffer",
        client=api.client,
        data=ctypes.addressof(zeros),
        type=kind,
        dims=ctypes.addressof(dimensions),
        num_dims=len(shape),
        host_buffer_semantics=_COPIED_DURING_CALL,
        device=device,
    )
    api.call("PJRT_Event_Destroy", event=small.done_with_host_buffer)
    return int(small.buffer)


@contextmanager
def _executable(api: PjrtApi, loaded: int) -> Iterator[int]:
    executable = api.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    try:
        yield executable
    finally:
        api.call("PJRT_Executable_Destroy", executable=executable)


def _first_device(api: PjrtApi, loaded: int) -> int | None:
    devices = api.call("PJRT_LoadedExecutable_AddressableDevices", executable=loaded).addressable_devices
    return ctypes.c_void_p.from_address(devices).value


def _outputs(api: PjrtApi, executable: int) -> list[tuple[int, list[int]]]:
    """(PJRT_Buffer_Type, shape) of each output."""
    types = api.call("PJRT_Executable_OutputElementTypes", executable=executable)
    shapes = api.call("PJRT_Executable_OutputDimensions", executable=executable)
    count = types.num_output_types
    if not count:
        return []
    kinds = (ctypes.c_uint32 * count).from_address(types.output_types)
    ranks = (ctypes.c_size_t * count).from_address(shapes.dim_sizes)
    dimensions = iter((ctypes.c_int64 * sum(ranks)).from_address(shapes.dims) if sum(ranks) else ())
    return [(kind, [next(dimensions) for _ in range(rank)]) for kind, rank in zip(kinds, ranks, strict=True)]

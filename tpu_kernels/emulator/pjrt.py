"""Access to the function table of a PJRT plugin: call it, and put functions of ours in it.

PJRT is a C interface: `GetPjrtApi` returns a struct of function pointers, each taking one pointer
to an argument struct and returning a `PJRT_Error*` (null for success). pypjrt knows the layouts.
torch_tpu loads the same shared object, so it gets the same struct and sees the changes made here.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[[int], int | None]
Original = Function
Hook = Callable[[Original, int], int | None]

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13


class PjrtApi:
    """The function table of one plugin, loaded once and never unloaded; `client` is its client, once made.

    `own_device` is the device of this process where it is not the client's only one.
    """

    def __init__(self, plugin: Path) -> None:
        from pypjrt import _abi

        self._library = ctypes.CDLL(str(plugin), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._library.GetPjrtApi.restype = ctypes.c_void_p
        self.address: int = self._library.GetPjrtApi()
        extension, major, minor = _abi.bootstrap_offsets()
        version = (
            ctypes.c_int32.from_address(self.address + major).value,
            ctypes.c_int32.from_address(self.address + minor).value,
        )
        self.abi: Any = _abi.load(*version)[0]
        self.client: int | None = None
        self.own_device: int | None = None
        self._extension_start = ctypes.c_void_p.from_address(self.address + extension)
        self._table = ctypes.cast(self.address + self.abi.VTABLE_OFFSET, ctypes.POINTER(ctypes.c_void_p))
        self._originals: dict[str, int] = {}
        self._alive: list[Any] = []
        # Functions of ours must not be reachable once the interpreter is gone.
        atexit.register(self.restore)

    @functools.cached_property
    def element_bits(self) -> dict[int, int]:
        """Bits of one element of each PJRT_Buffer_Type; the name tells (F32, BF16, S4, F8E5M2, PRED)."""
        prefix = "PJRT_Buffer_Type_"
        names = [name for name in vars(self.abi) if name.startswith(prefix)]
        types = {name.removeprefix(prefix): getattr(self.abi, name) for name in names}
        widths = {name: re.match(r"[A-Z]+(\d+)", name) for name in types}
        bits = {types[name]: int(width[1]) for name, width in widths.items() if width}
        return {types["INVALID"]: 0, types["TOKEN"]: 0, types["PRED"]: 8, **bits}

    def struct(self, name: str, address: int) -> Any:
        """The argument struct `name` (a ctypes Structure of pypjrt's) that lies at `address`."""
        return getattr(self.abi, name).from_address(address)

    def arguments(self, name: str, /, **fields: Any) -> Any:
        """A zeroed argument struct `name` with its size and the given fields filled in."""
        struct = getattr(self.abi, name)()
        struct.struct_size = getattr(self.abi, f"{name}_STRUCT_SIZE")
        for field, value in fields.items():
            setattr(struct, field, value)
        return struct

    def call(self, function: str, **fields: Any) -> Any:
        """Call the plugin's own `function`; return its argument struct. Raises RuntimeError."""
        struct = self.arguments(f"{function}_Args", **fields)
        error = self.original(function)(ctypes.addressof(struct))
        if error:
            raise RuntimeError(f"{function}: {self._message(error)}")
        return struct

    def original(self, function: str) -> Any:
        """The plugin's own `function`, whatever stands in the table now."""
        address = self._originals.get(function) or self._table[self.abi.SLOT[function]]
        return _FUNCTION(address)

    def hook(self, function: str, hook: Hook) -> None:
        """Put `hook(original, arguments_address)` in place of `function`.

        The hook runs on whatever thread calls it and returns a `PJRT_Error*` address or None. If it
        raises, an interrupt included, the caller gets that as an error of code INTERNAL.
        """
        original = self.original(function)

        def entry(arguments: int) -> int | None:
            try:
                return hook(original, arguments)
            except BaseException as error:
                text = f"{function} in the emulated TPU: {type(error).__name__}: {error}"
                return self.error(INTERNAL, text)

        slot = self.abi.SLOT[function]
        self._originals.setdefault(function, self._table[slot])
        self._table[slot] = self._pointer(entry)

    def prepend_extension(self, kind: int, size: int, functions: dict[int, Function]) -> None:
        """Put an extension struct of type `kind` and `size` bytes in front of the plugin's chain.

        `functions` maps the index of a function pointer in the extension to its implementation; the
        other pointers stay null.
        """
        base = self.abi.PJRT_Extension_Base
        block = (ctypes.c_char * size)()
        header = base.from_buffer(block)
        header.struct_size, header.type, header.next = size, kind, self._extension_start.value
        table = ctypes.c_void_p * ((size - ctypes.sizeof(base)) // ctypes.sizeof(ctypes.c_void_p))
        pointers = table.from_buffer(block, ctypes.sizeof(base))
        for index, function in functions.items():
            pointers[index] = self._pointer(function)
        self._alive.append(block)
        self._extension_start.value = ctypes.addressof(block)

    def error(self, code: int, message: str) -> int:
        """The address of a new `PJRT_Error` with this code and message; its receiver destroys it."""
        text = message.encode()
        buffer = ctypes.create_string_buffer(text)
        event = self.call("PJRT_Event_Create").event
        setter = {"error_message": ctypes.addressof(buffer), "error_message_size": len(text)}
        self.call("PJRT_Event_Set", event=event, error_code=code, **setter)
        query = self.arguments("PJRT_Event_Error_Args", event=event)
        error = self.original("PJRT_Event_Error")(ctypes.addressof(query))
        self.call("PJRT_Event_Destroy", event=event)
        return int(error)

    def restore(self) -> None:
        """Put the plugin's own functions back."""
        for function, address in self._originals.items():
            self._table[self.abi.SLOT[function]] = address

    def _pointer(self, function: Function) -> int:
        callback = _FUNCTION(function)
        self._alive.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    def _message(self, error: int) -> str:
        query = self.arguments("PJRT_Error_Message_Args", error=error)
        self.original("PJRT_Error_Message")(ctypes.addressof(query))
        text = ctypes.string_at(query.message, query.message_size).decode(errors="replace")
        self.original("PJRT_Error_Destroy")(ctypes.addressof(self.arguments("PJRT_Error_Destroy_Args", error=error)))
        return text

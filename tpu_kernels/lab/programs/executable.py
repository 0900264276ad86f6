"""libtpu through PJRT's C interface: compile a StableHLO program for a topology, and ask what came of it.

For a process of its own: neither the emulator nor JAX's TPU client may be in it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tpu_kernels.lab.programs.hlo_proto import module_of, readable

MEMORY_FIELDS: Final = ("argument", "output", "alias", "temp", "generated_code", "peak_memory")


def _address(buffer: Any) -> int:
    return ctypes.addressof(buffer)


class Compiler:
    """libtpu, loaded once, compiling for one topology."""

    def __init__(self, topology: str) -> None:
        import libtpu
        from pypjrt import Plugin, Topology

        self._plugin: Any = Plugin(libtpu.get_library_path())
        self._plugin.initialize()
        self._topology: Any = Topology.create(self._plugin, topology)

    def _call(self, function: str, **fields: Any) -> Any:
        arguments = self._plugin.args(f"{function}_Args", **fields)
        self._plugin.call(function, arguments)
        return arguments

    @contextmanager
    def compiled(self, stablehlo: bytes, options: bytes) -> Iterator[Executable]:
        """The executable of a program. Raises pypjrt's PjrtError with libtpu's message."""
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in (stablehlo, b"mlir", options)]
        program = self._plugin.args(
            "PJRT_Program",
            code=_address(buffers[0]),
            code_size=len(stablehlo),
            format=_address(buffers[1]),
            format_size=len(b"mlir"),
        )
        executable = self._call(
            "PJRT_Compile",
            topology=self._topology._check(),
            program=_address(program),
            compile_options=_address(buffers[2]),
            compile_options_size=len(options),
        ).executable
        try:
            yield Executable(self._plugin, executable)
        finally:
            self._call("PJRT_Executable_Destroy", executable=executable)


class Executable:
    """A compiled program, while its `Compiler.compiled` is open."""

    def __init__(self, plugin: Any, address: int) -> None:
        self._plugin, self._executable = plugin, address

    def memory(self) -> dict[str, int]:
        """Bytes in the chip's memory, by the names of `MEMORY_FIELDS`."""
        stats = self._plugin.args("PJRT_Executable_GetCompiledMemoryStats_Args", executable=self._executable)
        self._plugin.call("PJRT_Executable_GetCompiledMemoryStats", stats)
        suffixed = {name: name if name.endswith("_memory") else f"{name}_size" for name in MEMORY_FIELDS}
        return {name: int(getattr(stats, f"{field}_in_bytes")) for name, field in suffixed.items()}

    def hlo(self) -> str:
        """The optimised HLO module as text."""
        from jaxlib._hlo import HloModule

        program = self._plugin.args("PJRT_Program")
        arguments = self._plugin.args(
            "PJRT_Executable_OptimizedProgram_Args", executable=self._executable, program=_address(program)
        )
        # Asked twice: for the size, and then for the bytes.
        self._plugin.call("PJRT_Executable_OptimizedProgram", arguments)
        code = ctypes.create_string_buffer(program.code_size)
        program.code = _address(code)
        self._plugin.call("PJRT_Executable_OptimizedProgram", arguments)
        module = readable(module_of(ctypes.string_at(code, program.code_size)))
        return str(HloModule.from_serialized_hlo_module_proto(module).to_string())

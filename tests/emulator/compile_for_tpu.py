"""`python compile_for_tpu.py TOPOLOGY PROGRAM OPTIONS`: compile a captured program with libtpu, no TPU needed.

Prints the number of outputs of the executable. It stands alone: the emulator and libtpu never share
a process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def main(topology_name: str, program_file: str, options_file: str) -> None:
    os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    import libtpu
    from pypjrt import Plugin, Topology

    plugin = Plugin(libtpu.get_library_path())
    plugin.initialize()
    code, options = Path(program_file).read_bytes(), Path(options_file).read_bytes()
    buffers = [ctypes.create_string_buffer(data, len(data)) for data in (code, b"mlir", options)]
    program = plugin.args(
        "PJRT_Program",
        code=ctypes.addressof(buffers[0]),
        code_size=len(code),
        format=ctypes.addressof(buffers[1]),
        format_size=len(b"mlir"),
    )
    with Topology.create(plugin, topology_name) as topology:
        arguments = plugin.args(
            "PJRT_Compile_Args",
            topology=topology._check(),
            program=ctypes.addressof(program),
            compile_options=ctypes.addressof(buffers[2]),
            compile_options_size=len(options),
        )
        plugin.call("PJRT_Compile", arguments)
        outputs = plugin.args("PJRT_Executable_NumOutputs_Args", executable=arguments.executable)
        plugin.call("PJRT_Executable_NumOutputs", outputs)
        print("outputs:", outputs.num_outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])

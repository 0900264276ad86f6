"""Run a script as `__main__` on the emulated TPU."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from tpu_kernels.emulator import launching
from tpu_kernels.emulator.bootstrap import start
from tpu_kernels.errors import EmulatorError, explain

USAGE = "usage: python -m tpu_kernels.emulator [--force] [-m] SCRIPT [ARGS...]"


def run_script(script: str, argv: Sequence[str], force: bool = False, module: bool = False) -> int:
    """Run `script` as `python SCRIPT ARGV...` would, on the emulated TPU; return its exit code.

    With `module` it is the name of a module, as in `python -m MODULE`.

    The script sees itself as `__main__`, its arguments in `sys.argv` and its folder first on
    `sys.path`. An exception that it leaves uncaught is printed and gives 1; `sys.exit` gives what
    it was given. Raises EmulatorError if there is no such script or the emulator cannot start.
    """
    if not module and not os.path.exists(script):
        raise EmulatorError(
            explain(
                f"There is no script {script!r} to run on the emulated TPU.",
                got=f"working directory {os.getcwd()}",
                next_step="give the path of a Python file: python -m tpu_kernels.emulator SCRIPT [ARGS...]",
            )
        )
    start(force=force)
    launching.install(force)
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [script, *argv]
    if not module and not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        code = _exit_code(stop)
        if code:
            launching.skip_exit_barrier()
        return code
    except Exception as error:
        traceback.print_exception(_without_our_frames(error))
        launching.skip_exit_barrier()
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def main(arguments: Sequence[str]) -> int:
    """The command line: `[--force] [-m] SCRIPT [ARGS...]`; returns the exit code (2 for a refusal)."""
    rest = list(arguments)
    force = rest[:1] == ["--force"]
    rest = rest[force:]
    module = rest[:1] == ["-m"]
    rest = rest[module:]
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if rest else sys.stderr)
        return 0 if rest else 2
    try:
        return run_script(rest[0], rest[1:], force=force, module=module)
    except EmulatorError as error:
        print(error, file=sys.stderr)
        return 2


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _without_our_frames(error: Exception) -> Exception:
    """The error with a traceback that starts in the script, as plain Python would show it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        frame = frame.tb_next
    return error.with_traceback(frame) if frame is not None else error

"""One rank of a launch: `python -m tpu_kernels.launch.worker [OPTIONS] SCRIPT [ARGS...]`, started by torchrun.

It runs the script as `python SCRIPT ARGS...` would, and adds three things: it ends with the launcher, whatever ends
that; it records an uncaught exception for the launcher; and a rank whose own error only follows from another rank's
says so in one line. Nothing is imported here that the script must import first.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import faulthandler
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from tpu_kernels.emulator.launching import skip_exit_barrier
from tpu_kernels.errors import EmulatorError
from tpu_kernels.launch.records import record_failure

_PR_SET_PDEATHSIG = 1
# The emulator would make a temporary folder for it, which stays if the rank is killed.
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_TO_SHUT_DOWN = 5


def main(arguments: Sequence[str]) -> int:
    """Run the rank; returns 0 when it ended well. A rank that fails ends the process here, with its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--launcher", type=int, required=True, help="process id of the launcher")
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--scratch", help="folder that the launcher removes")
    parser.add_argument("--module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("--exec", action="store_true", help="SCRIPT is a program that is no Python file")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    _die_with(options.launcher)
    if options.exec:
        os.execvp(options.script, [options.script, *options.arguments])
    faulthandler.enable()
    try:
        if options.emulate:
            from tpu_kernels import emulator

            if options.scratch and _CACHE not in os.environ:
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                os.environ[_CACHE] = os.path.join(options.scratch, f"cache-{os.environ['RANK']}-{attempt}")
            emulator.start(force=options.force)
        _run(options.script, options.arguments, module=options.module)
    except SystemExit as stop:
        _stopped(stop)
    except EmulatorError as error:
        if record_failure(error, 2):
            print(f"error: {error}", file=sys.stderr)
        _failed(2)
    except BaseException as error:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        _without_our_frames(error)
        if record_failure(error, code):
            sys.excepthook(type(error), error, error.__traceback__)
        _failed(code)
    return 0


def _run(script: str, arguments: Sequence[str], *, module: bool) -> None:
    sys.argv = [script, *arguments]
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


def _die_with(launcher: int) -> None:
    """SIGKILL for this process when the launcher dies, even of a SIGKILL of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:  # it died before the line above
        os._exit(1)


def _stopped(stop: SystemExit) -> None:
    """End as Python does after `sys.exit(...)`."""
    if stop.code is None or stop.code == 0:
        return
    if isinstance(stop.code, int):
        code = stop.code & 0xFF
        text = ""
    else:
        code, text = 1, str(stop.code)
    record_failure(stop, code)
    if text:
        print(text, file=sys.stderr)
    _failed(code)


def _failed(code: int) -> NoReturn:
    """End this process soon, even where plain Python would wait for the other ranks, which wait for this one.

    torch_tpu's own exit function is such a place: it waits at a barrier for all ranks. The other exit functions run,
    for a few seconds at most; threads that are still at work are cut off.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_SECONDS_TO_SHUT_DOWN)
    skip_exit_barrier()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _without_our_frames(error: BaseException) -> None:
    """Let the traceback start in the script, as plain Python would show it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        frame = frame.tb_next
    error.__traceback__ = frame


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`tpu-kernels launch`: one process per chip, started and watched by torchrun."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

from tpu_kernels._logging import verbosity
from tpu_kernels.emulator import preflight
from tpu_kernels.errors import LaunchError, explain
from tpu_kernels.launch import environment

_SECONDS_TO_STOP = 5
# Options of torchrun that the environment of a slice can fill in: None until then.
_FROM_SLICE = ("nnodes", "node_rank", "master_addr", "master_port")
# torchrun's running commentary on the end of a rank, which our last message replaces.
_COMMENTS = ("Sending process ", "Unable to shutdown process ", "failed (exitcode", "Received ")
_COMMENTATORS = ("torch.distributed.elastic.multiprocessing.api", "torch.distributed.elastic.agent.server.api")


def run_launch(
    arguments: Sequence[str], *, nproc: int | None = None, emulate: bool = False, force: bool = False
) -> int:
    """Start `nproc` ranks of a script on this host, each with a TPU of its own, and wait for them.

    `arguments` are options of torchrun, the script, and its arguments; `--nproc`, `--emulate` and `--force` may stand
    among the options too. Without `emulate` torch_tpu's `set_tpu_launch_env` runs first, in this process, which takes
    no TPU. With it every rank runs on the emulated TPU; `force` does so even where a TPU is.

    Returns 0 when all ranks ended well, else the exit code of the rank that failed first (128 + N for signal N), and
    says on stderr which one that was. When a rank fails the others get SIGTERM, and SIGKILL `--shutdown-timeout`
    seconds later (5 unless it is given); the same happens when this process is told to end, with the signal that it
    got. Processes that the ranks left behind are killed; every child of this process is taken for one.

    Raises LaunchError or EmulatorError, before any process is started, for a launch that cannot work here, and
    LaunchError if the hosts of a launch do not find together.
    """
    with environment.environment_kept(TORCH_DEVICE_BACKEND_AUTOLOAD="0"):
        import torch.distributed.run  # noqa: F401
    options = _parse(arguments, nproc, emulate, force)
    count = _count(options.nproc_per_node)
    _check_script(options)
    if options.emulate:
        preflight.check_no_tpu(force=options.force or os.environ.get(preflight.FORCE_VARIABLE, "0") not in ("", "0"))
        preflight.cpu_plugin_path()
        environment.forget_launch_environment()
    else:
        environment.set_launch_environment(options, count)
    _complete(options, count)
    scratch = tempfile.mkdtemp(prefix="tpu-kernels-launch-")
    try:
        _wrap_script(options, scratch)
        return _run(options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _parse(arguments: Sequence[str], nproc: int | None, emulate: bool, force: bool) -> argparse.Namespace:
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = "tpu-kernels launch"
    parser.add_argument("--nproc", dest="nproc_per_node", default=argparse.SUPPRESS, help="Ranks on this host.")
    parser.add_argument("--emulate", action="store_true", help="On emulated TPUs.")
    parser.add_argument("--force", action="store_true", help="Emulate even where a TPU is.")
    parser.error = _wrong_options  # type: ignore[method-assign]
    given = argparse.Namespace(
        **{option: None for option in _FROM_SLICE if f"PET_{option.upper()}" not in os.environ},
        nproc_per_node=None if nproc is None else str(nproc),
        emulate=emulate,
        force=force,
        defaults={option: parser.get_default(option) for option in _FROM_SLICE},
    )
    return parser.parse_args(list(arguments), given)


def _wrong_options(message: str) -> NoReturn:
    message = message.replace("training_script, training_script_args", "SCRIPT").replace("training_script", "SCRIPT")
    raise LaunchError(
        explain(
            "the options of the launch cannot be read.",
            needs="tpu-kernels launch --nproc N [--emulate] [OPTIONS OF TORCHRUN] SCRIPT [ARGS...]",
            got=message,
            next_step="see `tpu-kernels launch --help`; torchrun's own options are listed by `torchrun --help`.",
        )
    )


def _count(text: str | None) -> int:
    if text is not None and text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise LaunchError(
        explain(
            "the number of ranks is missing." if text is None else f"--nproc {text} is no number of ranks.",
            needs="how many processes to start on this host, one per TPU device: 1 or more",
            next_step="for instance: tpu-kernels launch --nproc 4 SCRIPT",
        )
    )


def _check_script(options: argparse.Namespace) -> None:
    script = options.training_script
    if options.no_python:
        missing, what = shutil.which(script) is None, "program"
        if options.emulate:
            raise LaunchError(
                explain(
                    "--emulate needs a Python script: the emulator lives in the process that it serves.",
                    got=f"--no-python {script}",
                    next_step="leave --no-python out.",
                )
            )
    else:
        missing, what = not options.module and not os.path.exists(script), "script"
    if missing:
        raise LaunchError(
            explain(
                f"there is no {what} {script!r} to launch.",
                got=f"working directory {os.getcwd()}",
                next_step="give the path of a Python file after the options: tpu-kernels launch --nproc N SCRIPT",
            )
        )


def _complete(options: argparse.Namespace, count: int) -> None:
    """torchrun's defaults where nothing was given, and ours where they differ."""
    for option, default in options.defaults.items():
        if getattr(options, option) is None:
            setattr(options, option, default)
    if options.shutdown_timeout is None and "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in os.environ:
        options.shutdown_timeout = _SECONDS_TO_STOP
    # torchrun would take 1 for several ranks, and say so in eight lines.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))


def _wrap_script(options: argparse.Namespace, scratch: str) -> None:
    """Let torchrun start our worker, which runs the script; what nobody asked to keep goes into `scratch`."""
    if options.log_dir is None and {options.redirects, options.tee} == {"0"}:
        options.log_dir = scratch
    flags = ["--launcher", str(os.getpid()), "--scratch", scratch]
    flags += ["--emulate"] if options.emulate else []
    flags += ["--force"] if options.force else []
    flags += ["--module"] if options.module else []
    flags += ["--exec"] if options.no_python else []
    options.training_script_args = [*flags, options.training_script, *options.training_script_args]
    options.training_script = "tpu_kernels.launch.worker"
    options.module, options.no_python, options.run_path = True, False, False


def _run(options: argparse.Namespace) -> int:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from tpu_kernels.launch.agent import ENDING, adopt_orphans, agents, end_children

    _quieten()
    adopt_orphans()
    handlers = {number: signal.getsignal(number) for number in ENDING}  # torchrun, and we, set others
    code = 1
    try:
        with agents() as made:
            torchrun.run(options)  # type: ignore[no-untyped-call]
        code = 0
    except ChildFailedError as error:
        code = _report(error.failures, made[-1])
    except (SignalException, KeyboardInterrupt) as error:
        number = getattr(error, "sigval", signal.SIGINT)
        print(f"error: stopped by {number.name}; the ranks of this host were ended.", file=sys.stderr)
        code = 128 + number
    except Exception as error:
        raise LaunchError(
            explain(
                "torchrun could not run this launch.",
                got=f"{type(error).__name__}: {error}",
                next_step="check torchrun's options; for several hosts --nnodes, --node-rank, --master-addr and\n"
                "--master-port, and that the first host can be reached at that address and port.",
            )
        ) from error
    finally:
        if code:
            end_children()
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
    return code


def _report(failures: Any, agent: Any) -> int:
    from tpu_kernels.launch.failures import failure_message, first_failure

    failure = first_failure(failures, agent.deaths, agent.stopped)
    group = agent.get_worker_group()
    message = failure_message(
        failure,
        world_size=group.workers[0].world_size,
        hosts=group.group_world_size,
        attempts=agent.attempts,
        hidden=agent.hidden_errors(failure.local_rank),
    )
    print(f"error: {message}", file=sys.stderr)
    return failure.shell_code


def _quieten() -> None:
    if "LOGLEVEL" in os.environ or verbosity() <= logging.DEBUG:
        return
    for name in _COMMENTATORS:
        logging.getLogger(name).addFilter(_is_no_comment)


def _is_no_comment(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_COMMENTS)

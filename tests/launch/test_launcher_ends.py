"""How a launch ends: which rank failed, what is shown, and that nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.launches import Launch, is_running, script, several, start

# Rank 1 fails in the way that it is told; rank 0 waits for it, as in a collective, and loses its connection.
FAILING = """
import ctypes, os, socket, sys
folder, how, tag = sys.argv[1:4]
name = f"{folder}/{tag}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
if os.environ["RANK"] == "0":
    server = socket.socket(socket.AF_UNIX)
    server.bind(name + ".new")
    server.listen()
    os.rename(name + ".new", name)
    peer, _ = server.accept()
    if not peer.recv(1):
        raise ConnectionError("the other rank is gone\\nand more")
else:
    peer = socket.socket(socket.AF_UNIX)
    while not os.path.exists(name):
        pass
    peer.connect(name)
    if how == "raise":
        raise ValueError("wrong")
    elif how == "exit":
        sys.exit(7)
    elif how == "_exit":
        os._exit(9)
    elif how == "kill":
        os.kill(os.getpid(), 9)
    elif how == "crash":
        ctypes.string_at(0)
    elif how == "retry" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("wrong at first")
    peer.send(b"x")
"""

# Each rank starts a process in a session of its own; with "stubborn" neither SIGTERM nor SIGINT ends the rank.
LEAVING = """
import os, signal, subprocess, sys, time
folder, rank = sys.argv[1], int(os.environ["RANK"])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with open(f"{folder}/.{rank}", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(f"{folder}/.{rank}", f"{folder}/{rank}")
while not os.path.exists(f"{folder}/{1 - rank}"):
    time.sleep(0.01)
if "fail" in sys.argv and rank == 0:
    sys.exit("no more")
time.sleep(60)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """The answers of launches in which rank 1 fails, by name."""
    folder = tmp_path_factory.mktemp("ended")
    file = script(folder, FAILING)
    options = {
        "raise": [],
        "exit": [],
        "_exit": [],
        "kill": [],
        "crash": [],
        "retry": ["--max-restarts", "1"],
        "raise again": ["--max-restarts=1"],
        "raise into a file": ["-r", "3", "--log-dir", str(folder / "logs")],
    }
    launches = [["--nproc", "2", *more, file, str(folder), name.split()[0], name] for name, more in options.items()]
    return dict(zip(options, several(*launches), strict=True))


def message(launch: Launch) -> str:
    """What the launcher said last, with the process id taken out."""
    return re.sub(r"process \d+", "process P", launch.stderr[launch.stderr.index("error: rank") :])


def test_the_traceback_is_shown_once_and_the_rank_is_named(ended: dict[str, Launch]) -> None:
    launch = ended["raise"]
    assert launch.code == 1
    traceback, line, *rest = re.split(r"(?<=ValueError: wrong\n)|(?<=had failed\)\n)", launch.stderr)
    assert re.fullmatch(
        r'Traceback \(most recent call last\):\n  File ".*/script.py", line \d+, in <module>\n'
        r'    raise ValueError\("wrong"\)\nValueError: wrong\n',
        traceback,
    )
    assert line == "rank 0: ConnectionError: the other rank is gone and more (after rank 1 had failed)\n"
    assert message(launch) == (
        "error: rank 1 of 2 (process P) failed with exit code 1; the other ranks were ended.\n"
        "  Got:   ValueError: wrong (as above)\n"
    )
    assert "".join(rest).startswith("error: ")


@pytest.mark.parametrize(
    ("how", "code", "what"),
    [
        ("exit", 7, "failed with exit code 7"),
        ("_exit", 9, "failed with exit code 9"),
        ("kill", 128 + 9, "was killed by SIGKILL"),
        ("crash", 128 + 11, "was killed by SIGSEGV"),
    ],
)
def test_a_rank_that_ends_without_an_exception_is_the_first(
    ended: dict[str, Launch], how: str, code: int, what: str
) -> None:
    assert ended[how].code == code
    assert message(ended[how]).startswith(f"error: rank 1 of 2 (process P) {what}; the other ranks were ended.\n")
    assert ended[how].stderr.count("Traceback") <= 1


def test_a_crash_shows_where_python_was(ended: dict[str, Launch]) -> None:
    stderr = ended["crash"].stderr
    line = next(number for number, line in enumerate(FAILING.splitlines(), start=1) if "string_at" in line)
    assert "Fatal Python error: Segmentation fault\n" in stderr
    assert f'script.py", line {line} in <module>\n' in stderr
    assert "dmesg" in ended["kill"].stderr


def test_restarts(ended: dict[str, Launch]) -> None:
    assert ended["retry"].code == 0
    assert ended["retry"].stderr.count("ValueError: wrong at first") == 1
    assert "error: " not in ended["retry"].stderr
    again = ended["raise again"]
    assert again.code == 1 and again.stderr.count("Traceback") == 2
    assert "failed with exit code 1, the last of 2 attempts; the other ranks were ended." in again.stderr


def test_a_traceback_that_went_into_a_file_is_in_the_message(ended: dict[str, Launch]) -> None:
    launch = ended["raise into a file"]
    assert launch.stderr.startswith("error: rank 1 of 2")
    assert '    raise ValueError("wrong")\n' in launch.stderr
    found = re.search(r"its stderr is in (.*/1/stderr.log)\n", launch.stderr)
    assert found is not None
    assert Path(found[1]).read_text().endswith("ValueError: wrong\n")


def test_nothing_is_left_when_a_rank_fails(tmp_path: Path) -> None:
    """Not even a rank that does not listen, nor what the ranks had started."""
    file = script(tmp_path, LEAVING)
    started = time.monotonic()
    launch = several(["--nproc", "2", "--shutdown-timeout", "1", file, str(tmp_path), "fail", "stubborn"])[0]
    assert launch.code == 1
    assert launch.stderr.startswith("no more\nerror: rank 0 of 2 ")
    assert time.monotonic() - started < 40
    assert [is_running(pid) for pid in processes(tmp_path)] == [False] * 4


@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGKILL, False)]
)
def test_nothing_is_left_when_the_launcher_is_told_to_end(
    tmp_path: Path, number: signal.Signals, stubborn: bool
) -> None:
    file = script(tmp_path, LEAVING)
    process = start(
        ["--nproc", "2", "--shutdown-timeout", "1", file, str(tmp_path), *(["stubborn"] if stubborn else [])]
    )
    wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), process)
    time.sleep(0.3)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    pids = processes(tmp_path)
    if number == signal.SIGKILL:  # nobody is left to end what the ranks had started; the ranks themselves end
        children = pids[1::2]
        pids = pids[::2]
        wait_for(lambda: not any(map(is_running, pids)), None)
        for child in children:
            os.kill(child, signal.SIGKILL)
    else:
        assert stdout == f"=== {128 + number}\n"
        assert f"error: stopped by {number.name}; the ranks of this host were ended.\n" in stderr
        assert stderr.count("Traceback") == (1 if number == signal.SIGINT else 0)
    assert not any(map(is_running, pids))


def test_two_hosts(tmp_path: Path) -> None:
    """Each host names its own rank, and the host whose rank only lost its peer points to the other."""
    file = script(tmp_path, FAILING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rendezvous = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    hosts = [
        start([*rendezvous, "--node-rank", str(rank), "--nproc", "1", file, str(tmp_path), "exit", "two"])
        for rank in (0, 1)
    ]
    (first, other), (_, own) = [host.communicate(timeout=120) for host in hosts]
    assert first == "=== 1\n"
    assert "ConnectionError: the other rank is gone" in other
    assert "error: rank 0 of 2 (process " in other and "look at the other hosts" in other
    assert "error: rank 1 of 2 (process " in own and "failed with exit code 7" in own


def processes(folder: Path) -> list[int]:
    """Of rank 0 and its child, of rank 1 and its child."""
    return [int(pid) for rank in (0, 1) for pid in (folder / str(rank)).read_text().split()]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_options_of_torchrun_pass_through(tmp_path: Path) -> None:
    """A module, a program that is no Python, a log with prefixes, and one rank's output alone."""
    (tmp_path / "a_package").mkdir()
    file = script(tmp_path / "a_package", "import sys\nprint('in', __name__, sys.argv[1:])\n", "__main__.py")
    module, program, tee, alone = several(
        ["--nproc", "1", "-m", "a_package", "--tee", "3"],
        ["--nproc", "1", "--no-python", "echo", "--nproc"],
        ["--nproc", "2", "--tee", "3", "--log-dir", str(tmp_path / "logs"), file],
        ["--nproc", "2", "--local-ranks-filter", "1", str(tmp_path / "a_package"), "x"],
        PYTHONPATH=str(tmp_path),
    )
    assert module.stdout == "in __main__ ['--tee', '3']\n", module.stderr
    assert program.stdout == "--nproc\n", program.stderr
    assert sorted(tee.stdout.splitlines()) == [f"[default{rank}]:in __main__ []" for rank in (0, 1)], tee.stderr
    assert alone.stdout == "in __main__ ['x']\n", alone.stderr
    assert [launch.code for launch in (module, program, tee, alone)] == [0] * 4

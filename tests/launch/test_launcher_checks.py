"""What `tpu-kernels launch` refuses before it starts anything, and what torch_tpu is told where it goes on."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.emulator.machines import add_pci_device
from tests.emulator.processes import python
from tests.launch.launches import script
from tpu_kernels.errors import EmulatorError, LaunchError
from tpu_kernels.launch import environment
from tpu_kernels.launch.launcher import run_launch

V5P, V6E, V7 = "0x0062", "0x006f", "0x0076"
TOPOLOGY, ADDRESSES = environment.TOPOLOGY, environment.ADDRESSES
ADDRESSES_OF_4 = ",".join(f"localhost:{port}" for port in range(9000, 9004))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of each test is its own, and torch_tpu forgets what it worked out in the test before."""
    from torch_tpu._internal import env_utils

    monkeypatch.setattr(env_utils, "_resolved_values", {})
    with environment.environment_kept():
        for name in (TOPOLOGY, ADDRESSES, "TPU_WORKER_HOSTNAMES", "JOB_COMPLETION_INDEX"):
            os.environ.pop(name, None)
        yield


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder whose sys and dev torch_tpu takes for those of this machine."""
    from torch_tpu._internal.utils import hardware

    monkeypatch.setattr(hardware, "pathlib", SimpleNamespace(Path=lambda path: Path(f"{tmp_path}{path}")))
    return tmp_path


def add_chips(root: Path, device: str, count: int) -> None:
    for number in range(count):
        add_pci_device(root, f"0000:00:{number:02x}.0", device=device, vfio_group=str(number))


def options(**given: Any) -> Namespace:
    return Namespace(**{"nnodes": None, "node_rank": None, "master_addr": None, "master_port": None} | given)


def refusal(nproc: int, **given: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        environment.set_launch_environment(options(**given), nproc)
    return str(caught.value)


def test_no_tpu(machine: Path) -> None:
    message = refusal(2)
    assert message.startswith("there is no TPU on this machine.\n  Needs: 2 TPU devices, ")
    assert "add --emulate" in message


def test_fewer_devices_than_ranks(machine: Path) -> None:
    add_chips(machine, V6E, 4)
    assert refusal(8) == (
        "this host has fewer TPU devices than --nproc 8.\n"
        "  Got:   4 x TPU v6e\n"
        "  Next:  take one of --nproc 1 or 4; for more, several hosts: --nnodes."
    )


@pytest.mark.parametrize(("device", "count", "nproc", "offered"), [(V6E, 8, 2, "1, 4 or 8"), (V7, 4, 1, "2 or 4")])
def test_a_number_that_the_topology_does_not_offer(
    machine: Path, device: str, count: int, nproc: int, offered: str
) -> None:
    add_chips(machine, device, count)
    message = refusal(nproc)
    assert message.startswith(f"the topology of this host offers no slice of {nproc}.\n  Needs: one of {offered} of ")
    assert message.endswith(f"take --nproc {offered}.")


@pytest.mark.parametrize(
    ("variable", "value", "got"),
    [
        (TOPOLOGY, "2,2,1", "a slice of 4"),
        (TOPOLOGY, "", "no topology"),
        (TOPOLOGY, "v5p", "no topology"),
        (ADDRESSES, ADDRESSES_OF_4, "4 addresses"),
        (ADDRESSES, "", "0 addresses"),
    ],
)
def test_variables_of_an_earlier_run(machine: Path, variable: str, value: str, got: str) -> None:
    add_chips(machine, V5P, 4)
    os.environ[variable] = value
    message = refusal(2)
    assert message.startswith(f"{variable} in the environment does not fit this launch.\n  Needs: 2 ranks: --nproc 2\n")
    assert f"  Got:   {variable}={value} ({got})\n" in message
    assert f"`unset {TOPOLOGY} {ADDRESSES}`" in message


@pytest.mark.parametrize(
    ("device", "pinned"),
    [
        (V5P, {TOPOLOGY: "2x2"}),
        (V5P, {TOPOLOGY: "4,1,1", ADDRESSES: ADDRESSES_OF_4}),
        (V7, {TOPOLOGY: "1,2,1,2"}),
        (V7, {TOPOLOGY: "1,2,1"}),
    ],
)
def test_variables_set_on_purpose_stay(machine: Path, device: str, pinned: dict[str, str]) -> None:
    add_chips(machine, device, 4)
    os.environ.update(pinned)
    environment.set_launch_environment(options(), 4)
    assert {name: os.environ[name] for name in pinned} == pinned
    assert len(os.environ[ADDRESSES].split(",")) == 4


def test_torch_tpu_sets_the_rest(machine: Path) -> None:
    add_chips(machine, V5P, 4)
    before = dict(os.environ)
    environment.set_launch_environment(options(), 2)
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    assert changed.pop(TOPOLOGY) == "1,2,1"
    assert len(set(changed.pop(ADDRESSES).split(","))) == 2
    assert set(changed) <= {"TORCH_TPU_XPROF_SESSION_ID"}


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("DELETED", "before")
    before = dict(os.environ)
    with environment.environment_kept(CHANGED="inside", ADDED="inside"):
        assert os.environ["CHANGED"] == os.environ["ADDED"] == "inside"
        del os.environ["DELETED"]
        os.environ["LEFT_BEHIND"] = "inside"
    assert dict(os.environ) == before


def test_several_hosts(machine: Path) -> None:
    add_chips(machine, V5P, 4)
    assert refusal(2, nnodes="2").startswith(
        "a slice of several hosts takes all TPU devices of each.\n  Needs: --nproc 4"
    )
    assert refusal(4, nnodes="1:2").startswith("a TPU slice cannot grow or shrink.")
    message = refusal(4, nnodes="2", node_rank=0)
    assert message.startswith(
        "torch_tpu cannot work out the environment of this launch.\n  Needs: TPU_WORKER_HOSTNAMES"
    )
    os.environ[TOPOLOGY] = "1,2,1"
    assert "Needs: 8 ranks: --nproc 4 on 2 hosts" in refusal(4, nnodes="2")


# A real launch of the second of two hosts, up to torchrun, on a machine of which only the PCI bus is not its own.
_SECOND_HOST = """
import os, pathlib, sys, types
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch.distributed.run, torch_tpu
from torch_tpu._internal.utils import hardware
root = sys.argv.pop(1)
hardware.pathlib = types.SimpleNamespace(Path=lambda path: pathlib.Path(root + path))
del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
if os.environ.get("TPU_WORKER_HOSTNAMES"):
    def run(options):
        print(options.nnodes, options.node_rank, options.master_addr, options.master_port, options.nproc_per_node)
        print(os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"])
    torch.distributed.run.run = run
from tpu_kernels.cli.main import main
try:
    main()
finally:
    print("device made:", torch_tpu._loader._DEVICE_INITIALIZED)
"""


def test_a_slice_of_two_hosts_needs_no_options(tmp_path: Path) -> None:
    add_chips(tmp_path, V5P, 4)
    file = script(tmp_path, "")
    process = python(
        *("-c", _SECOND_HOST, str(tmp_path), "launch", "--nproc", "4", file),
        TPU_WORKER_HOSTNAMES="first,second",
        JOB_COMPLETION_INDEX="1",
    )
    first, second, _ = process.stdout.splitlines()
    assert first == "2 1 first 29500 4", process.stderr
    assert second == ",".join(f"{host}:{8070 + number}" for host in ("first", "second") for number in range(4))


def test_the_ranks_get_the_environment_and_the_launcher_no_device(tmp_path: Path) -> None:
    add_chips(tmp_path, V5P, 4)
    names = [TOPOLOGY, ADDRESSES, "RANK", "WORLD_SIZE", "TORCH_DEVICE_BACKEND_AUTOLOAD"]
    file = script(
        tmp_path,
        "import json, os, sys\n"
        f"print(json.dumps([sys.argv[1:], __name__, *map(os.environ.get, {names})]) + '\\n', end='')\n",
    )
    process = python("-c", _SECOND_HOST, str(tmp_path), "launch", "--nproc", "2", file, "--nproc", "7", "--help")
    *ranks, last = process.stdout.splitlines()
    assert last == "device made: False"
    assert process.returncode == 0 and process.stderr.count("Traceback") == 0, process.stderr
    answers = sorted((json.loads(line) for line in ranks), key=lambda answer: answer[4])
    assert [answer[:3] for answer in answers] == [[["--nproc", "7", "--help"], "__main__", "1,2,1"]] * 2
    assert answers[0][3] == answers[1][3] and answers[0][3].count("localhost:") == 2
    assert [answer[4:] for answer in answers] == [["0", "2", None], ["1", "2", None]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: SCRIPT"),
        (["--nproc", "2"], "the following arguments are required: SCRIPT"),
        (["--nproc", "2", "--nnodes"], "argument --nnodes: expected one argument"),
        (["--nproc", "0", __file__], "--nproc 0 is no number of ranks."),
        (["--nproc", "two", __file__], "--nproc two is no number of ranks."),
        ([__file__], "the number of ranks is missing."),
        (["--nproc", "2", "gone.py"], "there is no script 'gone.py' to launch."),
        (["--nproc", "2", "--no-python", "gone"], "there is no program 'gone' to launch."),
        (["--nproc", "2", "--emulate", "--no-python", "ls"], "--emulate needs a Python script"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        run_launch(arguments)
    assert message in str(caught.value)
    assert "\n  Next:  " in str(caught.value)


def test_emulation_where_a_tpu_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_chips(tmp_path, V6E, 1)
    monkeypatch.setenv("TPU_KERNELS_SYSROOT", str(tmp_path))
    with pytest.raises(EmulatorError, match="this machine has a real one"):
        run_launch([__file__], nproc=2, emulate=True)

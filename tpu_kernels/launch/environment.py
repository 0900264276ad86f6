"""What torch_tpu wants of the environment before the ranks start, and what must hold for it. Imports torch_tpu."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from tpu_kernels.errors import LaunchError, explain

TOPOLOGY = "TORCH_TPU_TOPOLOGY"
ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
_HOSTS = "TPU_WORKER_HOSTNAMES"
# What torchrun takes as an option, and torch_tpu works out for a slice of several hosts.
_RENDEZVOUS = {"nnodes": "NNODES", "node_rank": "NODE_RANK", "master_addr": "MASTER_ADDR", "master_port": "MASTER_PORT"}


def set_launch_environment(options: Namespace, nproc: int) -> None:
    """Call torch_tpu's `set_tpu_launch_env` for `nproc` ranks on this host, after checks that it leaves out.

    `options` are torchrun's; nnodes, node_rank, master_addr and master_port are None where they were not given. On a
    slice of several hosts (TPU_WORKER_HOSTNAMES) they are filled in as torch_tpu works them out. This process takes no
    TPU. Raises LaunchError for devices that are missing, a number that the topology does not offer, and variables of
    an earlier run that do not agree.
    """
    hardware, set_tpu_launch_env = _torch_tpu()
    nnodes = _nnodes(options)
    several = nnodes > 1 or "JOB_COMPLETION_INDEX" in os.environ
    _check_devices(hardware, nproc, several)
    for variable in (TOPOLOGY, ADDRESSES):
        if variable in os.environ:
            _check_pinned(variable, os.environ[variable], nproc, nnodes, hardware)
    if several:
        for option, variable in _RENDEZVOUS.items():
            if getattr(options, option) is not None:
                os.environ[variable] = str(getattr(options, option))
    try:
        with _plain_argv(), _no_warnings():
            set_tpu_launch_env(nnodes=nnodes if several else None, nproc_per_node=nproc)
    except (ValueError, RuntimeError) as error:
        raise LaunchError(
            explain(
                "torch_tpu cannot work out the environment of this launch.",
                needs=f"{_HOSTS}, and this host's place in it (--node-rank, or JOB_COMPLETION_INDEX)"
                if several
                else None,
                got=str(error),
                next_step=f"set what it asks for; to use this host alone, unset {_HOSTS} and JOB_COMPLETION_INDEX.",
            )
        ) from error
    if several:
        for option, variable in _RENDEZVOUS.items():
            if getattr(options, option) is None and variable in os.environ:
                setattr(options, option, _like(option, os.environ[variable]))
    _check_pinned(ADDRESSES, os.environ[ADDRESSES], nproc, nnodes, hardware)


def forget_launch_environment() -> None:
    """Without chips the variables of a real slice only mislead: torch_tpu would wait for its other members."""
    for variable in (TOPOLOGY, ADDRESSES):
        os.environ.pop(variable, None)


@contextlib.contextmanager
def environment_kept(**values: str) -> Iterator[None]:
    """`values` in the environment inside the block, and afterwards the environment of before, whatever was changed."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def _torch_tpu() -> tuple[Any, Any]:
    """torch_tpu's view of the hardware, and set_tpu_launch_env. What its import sets is not for the ranks."""
    with environment_kept(TORCH_DEVICE_BACKEND_AUTOLOAD="0", TF_CPP_MIN_LOG_LEVEL="1"), _no_warnings():
        import torch
        import torch_tpu  # noqa: F401  (registers torch.tpu; with autoload off it does not make the device)
        from torch_tpu._internal.utils import hardware
    module: Any = torch
    return hardware, module.tpu.distributed.set_tpu_launch_env


def _nnodes(options: Namespace) -> int:
    """Hosts of the launch: as given, else as the environment of the slice says."""
    if options.nnodes is not None:
        low, _, high = str(options.nnodes).partition(":")
        if high and low != high:
            raise LaunchError(
                explain(
                    "a TPU slice cannot grow or shrink.",
                    needs="one number of hosts",
                    got=f"--nnodes {options.nnodes}",
                    next_step="give the number of hosts of the slice: --nnodes N.",
                )
            )
        return int(low)
    hosts = [host for host in os.environ.get(_HOSTS, "").split(",") if host]
    return len(hosts) if len(hosts) > 1 else 1


def _check_devices(hardware: Any, nproc: int, several_hosts: bool) -> None:
    count = hardware.get_tpu_device_count()
    if count == 0:
        raise LaunchError(
            explain(
                "there is no TPU on this machine.",
                needs=f"{nproc} TPU device{'s' * (nproc > 1)}, seen on the PCI bus and open through /dev/vfio",
                next_step="start it on a TPU host, or add --emulate to run on emulated chips.",
            )
        )
    name = hardware.get_tpu_device_name()
    offered = [size for size in range(1, count + 1) if _topology(hardware, size)]
    if nproc > count:
        raise LaunchError(
            explain(
                f"this host has fewer TPU devices than --nproc {nproc}.",
                got=f"{count} x {name}",
                next_step=f"take one of --nproc {_listed(offered)}; for more, several hosts: --nnodes.",
            )
        )
    if nproc not in offered:
        raise LaunchError(
            explain(
                f"the topology of this host offers no slice of {nproc}.",
                needs=f"one of {_listed(offered)} of its {count} x {name}",
                got=f"--nproc {nproc}",
                next_step=f"take --nproc {_listed(offered)}.",
            )
        )
    if several_hosts and nproc != count:
        raise LaunchError(
            explain(
                "a slice of several hosts takes all TPU devices of each.",
                needs=f"--nproc {count}",
                got=f"--nproc {nproc} on a host of {count} x {name}",
                next_step=f"take --nproc {count}, or one host alone (unset {_HOSTS} and JOB_COMPLETION_INDEX).",
            )
        )


def _check_pinned(variable: str, value: str, nproc: int, nnodes: int, hardware: Any) -> None:
    """Raise LaunchError if a variable, which torch_tpu takes as it stands, is not one of this many ranks."""
    world = nproc * nnodes
    if variable == ADDRESSES:
        found = len([address for address in value.split(",") if address])
        agrees, what = found == world, f"{found} addresses"
    else:
        sizes = _slice_sizes(value, hardware.get_devices_per_chip() or 1)
        # torch_tpu itself sets the host's own topology on each host of a slice
        agrees = world in sizes or (nnodes > 1 and value == _topology(hardware, nproc))
        what = f"a slice of {sizes[0]}" if sizes else "no topology"
    if not agrees:
        raise LaunchError(
            explain(
                f"{variable} in the environment does not fit this launch.",
                needs=f"{world} ranks: --nproc {nproc}" + (f" on {nnodes} hosts" if nnodes > 1 else ""),
                got=f"{variable}={value} ({what})",
                next_step=f"it may be left over from another run: `unset {TOPOLOGY} {ADDRESSES}`.\n"
                "torch_tpu keeps what is set, so a value set on purpose must agree with the number of ranks.",
            )
        )


def _slice_sizes(topology: str, devices_per_chip: int) -> tuple[int, ...]:
    """TPU devices of a topology such as 2,2,1 or 4x4; where it does not name the cores, both readings."""
    parts = [part for part in re.split(r"[,xX]", topology) if part]
    if not parts or not all(part.isdigit() for part in parts):
        return ()
    size = math.prod(map(int, parts))
    return (size,) if len(parts) > 3 or devices_per_chip == 1 else (size, size * devices_per_chip)


def _topology(hardware: Any, size: int) -> str | None:
    try:
        topology: str | None = hardware.get_tpu_topology(size)
    except RuntimeError:
        return None
    return topology


def _like(option: str, value: str) -> int | str:
    return int(value) if option in ("node_rank", "master_port") else value


def _listed(sizes: list[int]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, sizes[:-1])), str(sizes[-1]) if sizes else "")))


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """torch_tpu's advice on allocators and experimental functions is for the ranks, which get it as well."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="<TorchTpu/")
        yield


@contextlib.contextmanager
def _plain_argv() -> Iterator[None]:
    """torch_tpu lets absl read sys.argv; options of the script are none of its business."""
    argv = sys.argv
    sys.argv = argv[:1]
    try:
        yield
    finally:
        sys.argv = argv

"""What each TPU generation offers, per device: one entry of `jax.devices()`, one torch device.

A device is a whole chip on v4 and v5p (two TensorCores joined as a megacore) and on v5e and v6e (one
TensorCore), and half a chip on tpu7x, whose two TensorCores appear as two devices.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tpu_kernels.errors import explain

GIB: Final = 2**30
MIB: Final = 2**20

_CLOUD = "Google Cloud TPU documentation, System architecture: "
_JAX = "jax 0.10.2, jax/_src/pallas/mosaic/tpu_info.py"
_LIBTPU = "libtpu 0.0.52: the limit in its CompileTimeHbmOom message for a program that is too large"
_BOOK = "Austin et al., How to Scale Your Model, part 2, ICI bandwidth of a link, one way"
_MXU = "peak FLOP/s over (MXUs x width^2 x 2 x rows a cycle)"


@dataclass(frozen=True, kw_only=True)
class ChipInfo:
    """One TPU generation; every figure is of one device."""

    name: str
    """The name used in specs: "v5e"."""
    device_kind: str
    """What the runtime calls it: "TPU v5 lite"."""
    topology: str
    """The smallest topology name from which libtpu compiles ahead of time: "v5e:2x2"."""
    tensor_cores: int
    """TensorCores of a device."""
    peak_bf16_flops: float
    """bfloat16 FLOP/s."""
    hbm_bytes: int
    """Memory, bytes."""
    usable_hbm_bytes: int
    """Memory that the compiler lets one program use, bytes."""
    hbm_bandwidth: float
    """Bytes/s."""
    vmem_bytes: int
    """Vector memory of one TensorCore, bytes."""
    clock_hz: float
    """TensorCore clock."""
    ici_links: int
    """Links to neighbouring chips; the devices of one chip share them."""
    ici_link_bandwidth: float
    """Bytes/s of one link in one direction."""
    sources: MappingProxyType[str, str] = field(repr=False, hash=False, compare=False)
    """Where each figure is from."""


def _sources(page: str, clock: str, usable: str = _LIBTPU) -> MappingProxyType[str, str]:
    return MappingProxyType(
        {
            "device_kind": "libtpu 0.0.52, device_kind of the topology's devices",
            "topology": "libtpu 0.0.52, accepted by get_topology_desc",
            "tensor_cores": _JAX,
            "peak_bf16_flops": _CLOUD + page,
            "hbm_bytes": _CLOUD + page,
            "usable_hbm_bytes": usable,
            "hbm_bandwidth": _CLOUD + page,
            "vmem_bytes": _JAX,
            "clock_hz": clock,
            "ici_links": _CLOUD + page + ": interconnect topology, 2D torus (4) or 3D torus (6)",
            "ici_link_bandwidth": _BOOK,
        }
    )


CHIPS: Final[MappingProxyType[str, ChipInfo]] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            ChipInfo(
                name="v4",
                device_kind="TPU v4",
                topology="v4:2x2x1",
                tensor_cores=2,
                peak_bf16_flops=275e12,
                hbm_bytes=32 * GIB,
                usable_hbm_bytes=int(30.5 * GIB),
                hbm_bandwidth=1228e9,
                vmem_bytes=16 * MIB,
                clock_hz=1.05e9,
                ici_links=6,
                ici_link_bandwidth=45e9,
                sources=_sources(
                    "TPU v4",
                    "Jouppi et al., TPU v4 (ISCA 2023), table 4: 1050 MHz",
                    _LIBTPU + ", twice that of one TensorCore (it compiles v4 in split mode)",
                ),
            ),
            ChipInfo(
                name="v5e",
                device_kind="TPU v5 lite",
                topology="v5e:2x2",
                tensor_cores=1,
                peak_bf16_flops=197e12,
                hbm_bytes=16 * GIB,
                usable_hbm_bytes=int(15.75 * GIB),
                hbm_bandwidth=819e9,
                vmem_bytes=128 * MIB,
                clock_hz=1.5e9,
                ici_links=4,
                ici_link_bandwidth=45e9,
                sources=_sources("TPU v5e", f"{_MXU}: 197e12 / (4 x 128^2 x 2)"),
            ),
            ChipInfo(
                name="v5p",
                device_kind="TPU v5",
                topology="v5p:2x2x1",
                tensor_cores=2,
                peak_bf16_flops=459e12,
                hbm_bytes=96 * GIB,
                usable_hbm_bytes=int(95.73 * GIB),
                hbm_bandwidth=2765e9,
                vmem_bytes=64 * MIB,
                clock_hz=1.75e9,
                ici_links=6,
                ici_link_bandwidth=90e9,
                sources=_sources("TPU v5p", f"{_MXU}: 459e12 / (2 x 4 x 128^2 x 2)"),
            ),
            ChipInfo(
                name="v6e",
                device_kind="TPU v6 lite",
                topology="v6e:2x2",
                tensor_cores=1,
                peak_bf16_flops=918e12,
                hbm_bytes=32 * GIB,
                usable_hbm_bytes=int(31.24 * GIB),
                hbm_bandwidth=1640e9,
                vmem_bytes=128 * MIB,
                clock_hz=1.75e9,
                ici_links=4,
                ici_link_bandwidth=90e9,
                sources=_sources("TPU v6e", f"{_MXU}: 918e12 / (2 x 256^2 x 2 x 2)"),
            ),
            ChipInfo(
                name="tpu7x",
                device_kind="TPU7x",
                topology="tpu7x:2x2x1",
                tensor_cores=1,
                peak_bf16_flops=1153.5e12,
                hbm_bytes=96 * GIB,
                usable_hbm_bytes=int(94.74 * GIB),
                hbm_bandwidth=3690e9,
                vmem_bytes=64 * MIB,
                clock_hz=2.2e9,
                ici_links=6,
                ici_link_bandwidth=90e9,
                sources=_sources("TPU7x (Ironwood), half a chip", f"{_MXU}: 1153.5e12 / (2 x 256^2 x 2 x 2)"),
            ),
        )
    }
)
"""Every generation that tpu_kernels knows, by name."""


def chip(name: str) -> ChipInfo:
    """The generation called `name` ("v4", "v5e", "v5p", "v6e" or "tpu7x"). ValueError for any other name."""
    try:
        return CHIPS[name]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), CHIPS, n=1, cutoff=0.5)
        raise ValueError(
            explain(
                "This TPU generation is not known.",
                needs=f"one of {', '.join(CHIPS)}",
                got=repr(name),
                next_step=f"did you mean {near[0]!r}?" if near else None,
            )
        ) from None

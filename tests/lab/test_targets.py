"""What is compiled for: generations and topologies, and how many devices they have."""

from __future__ import annotations

import pytest

from tpu_kernels.lab.targets import target_of


@pytest.mark.parametrize(
    ("name", "devices", "topology"),
    [
        ("v5e", 1, "v5e:2x2"),
        ("v6e", 4, "v6e:2x2"),
        ("v6e", 8, "v6e:2x4"),
        ("v5p", 8, "v5p:2x2x2"),
        ("tpu7x", 1, "tpu7x:2x2x1"),
        # A chip is two devices.
        ("tpu7x", 8, "tpu7x:2x2x1"),
        ("tpu7x", 16, "tpu7x:2x2x2"),
        ("v6e:4x4", 8, "v6e:4x4"),
    ],
)
def test_the_smallest_topology_with_enough_devices(name: str, devices: int, topology: str) -> None:
    target = target_of(name, devices)
    assert target.topology == topology
    assert target.devices >= devices


@pytest.mark.parametrize(("name", "devices"), [("v6e:1x1", 2), ("tpu7x:1x1x1", 4), ("v5e", 64)])
def test_a_topology_that_is_too_small(name: str, devices: int) -> None:
    with pytest.raises(ValueError, match=f"divided over {devices} chips does not fit"):
        target_of(name, devices)

"""The cache: same contents as transformers' static cache, a length that needs no device, and lengths set back."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, StaticCache

from tests.support.models import TINY
from tpu_kernels import emulator
from tpu_kernels.runtime.kv_cache import KernelCache, LayerShape, cache_bytes

SHAPES = (LayerShape(heads=2, key_dim=32, value_dim=32), LayerShape(heads=2, key_dim=32, value_dim=32))


def make(device: str = "cpu") -> KernelCache:
    return KernelCache(SHAPES, batch_size=3, max_cache_len=16, dtype=torch.float32, device=torch.device(device))


def states(new: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 2, new, 32, generator=generator), torch.randn(3, 2, new, 32, generator=generator)


def test_holds_what_a_static_cache_holds() -> None:
    ours, plain = make(), StaticCache(config=LlamaConfig(**TINY, num_hidden_layers=2), max_cache_len=16)
    for seed, new in enumerate((5, 1, 4)):
        for layer in range(2):
            got, want = ours.update(*states(new, seed), layer), plain.update(*states(new, seed), layer)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        assert ours.get_seq_length() == int(plain.get_seq_length())
    assert ours.get_mask_sizes(1, 0) == plain.get_mask_sizes(1, 0)
    assert ours.is_compileable and ours.is_initialized and ours.batch_size == 3
    ours.reset()
    assert ours.get_seq_length() == 0 and not ours.layers[0].keys.any()


def test_a_length_set_back_is_overwritten() -> None:
    cache = make()
    cache.update(*states(8, 0), 0)
    cache.layers[0].set_length(5)
    assert cache.get_seq_length() == 5
    new = states(2, 1)
    keys, _ = cache.update(*new, 0)
    assert torch.equal(keys[:, :, 5:7], new[0])
    assert torch.equal(keys[:, :, 7], states(8, 0)[0][:, :, 7])


def test_the_length_is_known_without_the_device_until_a_foreign_graph_writes() -> None:
    cache = make("tpu")
    cache.update(*(state.to("tpu") for state in states(3, 0)), 0)
    assert cache.layers[0].host_length == 3 and cache.host_length() == 3

    @torch.compile(backend="tpu", dynamic=False, fullgraph=True)
    def step(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return cache.update(key, value, 0)[0].sum()

    step(*(state.to("tpu") for state in states(2, 1)))
    assert cache.layers[0].host_length is None
    assert cache.host_length() == 5
    cache.set_length(4)
    before = emulator.compilations()
    cache.set_length(2)
    assert cache.host_length() == 2 and emulator.compilations() == before


def test_a_layer_that_holds_more_stays_and_the_cache_cannot_be_cut() -> None:
    config = LlamaConfig(**TINY, num_hidden_layers=2)
    cache = KernelCache(
        (None, SHAPES[0]),
        batch_size=3,
        max_cache_len=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
        config=config,
    )
    assert [type(layer).__name__ for layer in cache.layers] == ["StaticLayer", "KernelCacheLayer"]
    cache.update(*states(4, 0), 1)
    assert cache.host_length() == 4 and not cache.hides_padding and make().hides_padding
    with pytest.raises(ValueError, match="cannot be cut back"):
        cache.set_length(2)


def test_bytes() -> None:
    shapes = (LayerShape(8, 128, 128), LayerShape(4, 64, 32))
    assert cache_bytes(shapes, batch_size=2, max_cache_len=1024, dtype=torch.bfloat16) == 2 * 2 * 1024 * (2048 + 384)
    cache = make()
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert cache_bytes(SHAPES, batch_size=3, max_cache_len=16, dtype=torch.float32) == held

"""Staying right for long: many calls, several models, several threads."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, Qwen3Config

from tests.support.models import TINY, Pair, attention, generate_reference, left_padded, pair, prompt
from tpu_kernels import emulator, enable_tpu_kernels
from tpu_kernels.runtime.kv_cache import KernelCache

NEW = 3


def _resident() -> float:
    """Memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, **kwargs: Any) -> Any:
    return model.generate(ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **kwargs)


def _caches() -> int:
    gc.collect()
    return sum(isinstance(each, KernelCache) for each in gc.get_objects())


def test_200_calls_compile_nothing_and_keep_nothing() -> None:
    """Mixed lengths and batches: no compilation after the warm-up, no memory, no cache, and the right tokens."""
    both = pair(Qwen3Config(**TINY, num_hidden_layers=1))
    draw = random.Random(0)
    with enable_tpu_kernels(both.model, prefill_chunk=64) as report:
        report.warm_up([1, 2], [250], progress=False)
        assert report.programs_per_bucket == {(1, 256): 2, (2, 256): 2}
        compiled = emulator.compilations()
        started = 0.0
        for call in range(200):
            lengths = [draw.randrange(1, 240) for _ in range(draw.choice([1, 2]))]
            ids, mask = left_padded(lengths)
            got = _generate(both.model, ids, mask)
            if call % 40 == 39:
                for row, length in enumerate(lengths):
                    want = generate_reference(both.reference, ids[row : row + 1, -length:], NEW)[0]
                    assert torch.equal(got[row, -length - NEW :], want[0]), (call, length)
            if call == 19:
                gc.collect()
                started = _resident()
        assert emulator.compilations() == compiled
        assert report.programs_per_bucket == {(1, 256): 2, (2, 256): 2} and not report.notes
        assert all(count == 1 for p in report._session.log.programs for count in p.traces.values())
        assert _caches() == 0
        assert _resident() - started < 24, "MiB in 180 calls; one call's cache and logits take more than 0.2"


def test_a_cache_dies_with_its_last_user(qwen3: Pair) -> None:
    ids = prompt(20)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=64):
        out = _generate(qwen3.model, ids, torch.ones_like(ids), return_dict_in_generate=True)
        cache = weakref.ref(out.past_key_values)
        keys = weakref.ref(out.past_key_values.layers[0].keys)
        assert isinstance(cache(), KernelCache)
        del out
        gc.collect()
        assert cache() is None and keys() is None


def test_two_models_enabled_at_once(qwen3: Pair) -> None:
    """Each has its own graphs, and undoing one leaves the other as it is."""
    other = pair(LlamaConfig(**TINY, num_hidden_layers=1), seed=3)
    ids = prompt(33)
    mask = torch.ones_like(ids)
    expected = [generate_reference(each.reference, ids, NEW)[0] for each in (qwen3, other)]
    assert not torch.equal(*expected)
    first, second = (enable_tpu_kernels(each.model, prefill_chunk=64) for each in (qwen3, other))
    for _ in range(2):
        for each, want in zip((qwen3, other), expected, strict=True):
            assert torch.equal(_generate(each.model, ids, mask), want)
    assert len(first.programs) == len(second.programs) == 2
    compiled = emulator.compilations()
    first.undo()
    assert torch.equal(_generate(other.model, ids, mask), expected[1])
    assert emulator.compilations() == compiled
    assert second.enabled and not first.enabled
    second.undo()


def test_enabling_in_one_thread_while_another_generates(qwen3: Pair) -> None:
    other = pair(LlamaConfig(**TINY, num_hidden_layers=1), seed=3)
    ids = prompt(33)
    mask = torch.ones_like(ids)
    want, want_other = (generate_reference(each.reference, ids, NEW)[0] for each in (qwen3, other))
    generating, done = threading.Event(), threading.Event()
    wrong: list[Any] = []

    def keep_generating() -> None:
        try:
            while not done.is_set():
                if not torch.equal(_generate(qwen3.model, ids, mask), want):
                    wrong.append("other tokens")
                generating.set()
        except Exception as error:
            wrong.append(error)
            generating.set()

    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        thread = threading.Thread(target=keep_generating)
        thread.start()
        try:
            assert generating.wait(200)
            for _ in range(3):
                with enable_tpu_kernels(other.model, prefill_chunk=64):
                    assert torch.equal(_generate(other.model, ids, mask), want_other)
        finally:
            done.set()
            thread.join()
        assert not wrong and not report.notes
        assert all(call.is_kernel for call in attention(report.calls))


def test_threads_that_generate_with_one_model_take_turns(qwen3: Pair) -> None:
    """One of them runs the plain way, which switches the model's attention for its time."""
    ids = prompt(9)
    mask = torch.ones_like(ids)
    want = generate_reference(qwen3.reference, ids, NEW)[0]
    results: list[Any] = []

    def call(**kwargs: Any) -> None:
        for _ in range(2):
            try:
                results.append(_generate(qwen3.model, ids, mask, **kwargs).cpu())
            except Exception as error:
                results.append(error)

    with enable_tpu_kernels(qwen3.model, prefill_chunk=64) as report:
        threads = [threading.Thread(target=call), threading.Thread(target=call, kwargs={"use_cache": False})]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4 and all(isinstance(each, torch.Tensor) for each in results), results
        assert all(torch.equal(each, want) for each in results)
        assert report.notes == ("generate ran the plain way: use_cache=False (2 x)",)
        assert all(call.is_kernel for call in attention(report.calls))

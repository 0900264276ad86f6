"""Which cache length a call gets, so that calls of many lengths share few programs."""

from __future__ import annotations

from tpu_kernels.errors import CacheTooSmallError, explain

SMALLEST_BUCKET = 256
LARGEST_DOUBLING = 8192
DEFAULT_CHUNK = 256
KEY_MULTIPLE = 128
"""Kernels take caches whose length is a multiple of this."""


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def cache_bucket(tokens: int, chunk: int) -> int:
    """Length of the cache for a call that needs room for `tokens`: 256, 512, … 8192, then multiples of 8192.

    A multiple of `chunk`, so that the last, padded chunk of a prompt fits.

    >>> [cache_bucket(n, 64) for n in (1, 256, 257, 9000)]
    [256, 256, 512, 16384]
    """
    need = round_up(max(tokens, 1), chunk)
    if need > LARGEST_DOUBLING:
        return round_up(need, LARGEST_DOUBLING)
    bucket = max(SMALLEST_BUCKET, chunk)
    while bucket < need:
        bucket *= 2
    return bucket


def cache_length(tokens: int, *, chunk: int, limit: int | None, floor: int | None = None) -> int:
    """Length of the cache for a call of `tokens` (prompt and new ones, less the last).

    limit  longest cache that the user allows; then every call gets that length
    floor  length that a call asks to be prepared for at least (`generate(max_cache_len=…)`)
    Raises CacheTooSmallError where `tokens` exceed `limit`.
    """
    if limit is None:
        return cache_bucket(max(tokens, floor or 0), chunk)
    if tokens > limit:
        raise CacheTooSmallError(
            explain(
                "generate needs a longer cache than enable_tpu_kernels was told to make.",
                needs=f"prompt and new tokens, less the last: {tokens} positions",
                got=f"max_cache_len = {limit}",
                next_step="shorten the prompt, lower max_new_tokens, or enable with a larger max_cache_len.",
            )
        )
    return round_up(round_up(limit, KEY_MULTIPLE), chunk)


def check_chunk(chunk: int) -> int:
    """The prefill chunk, in tokens. Raises ValueError unless it is a power of two from 8 to 1024."""
    if not 8 <= chunk <= 1024 or chunk & (chunk - 1):
        raise ValueError(f"prefill_chunk must be a power of two from 8 to 1024, got {chunk}")
    return chunk

"""How long the exact join of 64-bit codes within a radius takes on one thread, faiss beside it."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.copies.hash_links import pairs_within
from skindx_bench.harness.result import Figure, Result, median

# N = codes, P = pairs, L = limits

SMALLEST = ("large=3000", "small=1000", "checked=500", "rounds=3")


class Config(Settings):
    """Numbers of codes for each figure; the keys name the default sizes and the default radius."""

    large: int = Field(1_000_000, ge=2)
    small: int = Field(200_000, ge=2)
    checked: int = Field(20_000, ge=2)
    radius: int = Field(4, ge=0, le=64)
    rounds: int = Field(5, ge=3)
    seed: int = 0
    slow_s: float = Field(10.0, ge=0)
    """A peer slower than this is run once."""


def run(settings: Config) -> Result:
    """Time the join, compiled before; compare it with brute force; time faiss where installed.

    There is no ratio to faiss: a ratio needs interleaved rounds, and faiss is slow enough to be
    run once.
    """
    radius = settings.radius
    large = planted_codes(settings.large, radius, settings.seed)
    small = planted_codes(settings.small, radius, settings.seed + 1)
    checked = planted_codes(settings.checked, radius, settings.seed + 2)
    exact = _equals_brute_force(checked, radius)
    candidates: dict[str, Callable[[], object]] = {
        "pairs_1m_r4_s": lambda: pairs_within(large, radius),
        "pairs_200k_r4_s": lambda: pairs_within(small, radius),
    }
    seconds = interleave(candidates, settings.rounds)
    figures = {key: median(samples, "s") for key, samples in seconds.items()}
    notes = [
        f"pairs_1m: {settings.large:,} codes, pairs_200k and faiss_200k: {settings.small:,}, "
        f"exact: {settings.checked:,} against brute force; within {radius} bits, one thread, "
        f"compiled before.",
        f"Codes: uniform 64 bits, of which one in ten is another one with 0 to {radius + 2} bits "
        f"flipped at random; seed {settings.seed}.",
    ]
    if find_spec("faiss") is None:
        notes.append("faiss is not installed, so its row is left out: pip install faiss-cpu.")
    else:
        figures["faiss_200k_r4_s"] = _faiss(small, settings)
        notes.append(
            "faiss: IndexBinaryFlat.range_search of all codes among all, one thread; "
            f"run once when slower than {settings.slow_s:g} s."
        )
    figures["exact"] = Figure(float(exact), "", 1, (float(exact), float(exact)))
    return Result("dedup", figures, notes=tuple(notes))


def planted_codes(n: int, radius: int, seed: int) -> NDArray[np.uint64]:
    """Return codes_N: uniform, but one in ten is another with 0 .. radius + 2 bits flipped."""
    rng = np.random.default_rng(seed)
    codes_N = rng.integers(0, 2**64, n, dtype=np.uint64)
    copies = n // 10
    near = codes_N[rng.integers(0, n - copies, copies)]
    flips = rng.integers(0, radius + 3, copies)
    for flip in range(radius + 2):
        bit = np.uint64(1) << rng.integers(0, 64, copies, dtype=np.uint64)
        near ^= np.where(flip < flips, bit, np.uint64(0))
    codes_N[n - copies :] = near
    return rng.permutation(codes_N)


def _equals_brute_force(codes_N: NDArray[np.uint64], radius: int) -> bool:
    first, second, distance = [], [], []
    for i in range(len(codes_N) - 1):
        differ = np.bitwise_count(codes_N[i + 1 :] ^ codes_N[i])
        near = np.flatnonzero(differ <= radius)
        first.append(np.full(len(near), i))
        second.append(i + 1 + near)
        distance.append(differ[near])
    expected = (np.concatenate(first), np.concatenate(second), np.concatenate(distance))
    found: tuple[NDArray[Any], ...] = pairs_within(codes_N, radius)
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def _faiss(codes_N: NDArray[np.uint64], settings: Config) -> Figure:
    import faiss

    bytes_N8 = codes_N.view(np.uint8).reshape(-1, 8)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        seconds: list[float] = []
        while len(seconds) < settings.rounds and not (seconds and seconds[0] > settings.slow_s):
            start = time.perf_counter()
            index = faiss.IndexBinaryFlat(64)
            index.add(bytes_N8)
            # faiss gives what is strictly nearer than its radius.
            index.range_search(bytes_N8, settings.radius + 1)
            seconds.append(time.perf_counter() - start)
    finally:
        faiss.omp_set_num_threads(threads)
    if len(seconds) == 1:
        return Figure(seconds[0], "s", 1, (seconds[0], seconds[0]))
    return median(seconds, "s")

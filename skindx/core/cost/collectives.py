"""Cost of a collective: time = alpha + beta · bytes, fitted or built from point-to-point links.

In `ring` bytes are those of the whole buffer, in `all_gather` those of one rank's message.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

SMALLEST_FITTED_BYTES = 1000
"""Smaller messages fit one packet and cost less than alpha; no single gradient is so small."""

MOST_FITTED = 512
"""Number of samples that a fit uses at most: it tries every line through two of them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """Seconds of one message or collective, as a line over its bytes (Hockney's model)."""

    alpha_s: float
    beta_s_per_byte: float

    def __call__(self, size_bytes: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * size_bytes


@dataclass(frozen=True)
class Curve:
    """Seconds over bytes through measured points; beyond them as steep as the line says."""

    line: Cost
    points: tuple[tuple[int, float], ...] = ()
    """(bytes, seconds), ascending; without any the line is all."""

    def __call__(self, size_bytes: float) -> float:
        """Return the predicted seconds."""
        if not self.points:
            return self.line(size_bytes)
        first, last = self.points[0], self.points[-1]
        if size_bytes <= first[0]:
            return first[1]
        if size_bytes >= last[0]:
            return last[1] + self.line.beta_s_per_byte * (size_bytes - last[0])
        sizes, seconds = zip(*self.points, strict=True)
        return float(np.interp(size_bytes, sizes, seconds))


def fit(samples: Iterable[tuple[int, float]]) -> Cost:
    """Fit measured (bytes, seconds), of which some may be far off; neither term is negative.

    Takes the median at each size from 1 kB, then the line with the least sum of relative errors
    |predicted / measured - 1|: absolute values follow the many and not the outliers, and relative
    ones let a small message say as much of alpha as a large one of beta. Raises ValueError.
    """
    seconds: dict[int, list[float]] = defaultdict(list)
    for size, elapsed in samples:
        if not (math.isfinite(elapsed) and elapsed > 0):
            raise ValueError(
                f"the time of {size} bytes is {elapsed} s, but a measured time must be above 0; "
                "measure again."
            )
        if size >= SMALLEST_FITTED_BYTES:
            seconds[size].append(elapsed)
    if len(seconds) < 2:
        raise ValueError(
            f"the measured messages of {sorted(seconds)} bytes do not show latency and bandwidth; "
            f"measure at least two sizes of {SMALLEST_FITTED_BYTES} bytes or more."
        )
    sizes = _thinned(sorted(seconds))
    sizes_N = np.array(sizes, float)
    medians_N = np.array([median(seconds[size]) for size in sizes])
    return least_relative_error(sizes_N, medians_N)


def _thinned(values: list[T]) -> list[T]:
    """Return at most `MOST_FITTED` of some values, evenly from the first to the last one."""
    if len(values) <= MOST_FITTED:
        return values
    step = (len(values) - 1) / (MOST_FITTED - 1)
    return [values[round(number * step)] for number in range(MOST_FITTED)]


def least_relative_error(
    sizes_N: np.ndarray, seconds_N: np.ndarray, known_N: np.ndarray | None = None
) -> Cost:
    """Fit a line on top of `known_N` seconds by the least sum of relative errors."""
    # A linear programme in two unknowns: its optimum is a corner, a line through two of the
    # points, or through one with alpha or beta at zero. So all corners are tried.
    zeros_N = np.zeros(len(sizes_N))
    known_N = zeros_N if known_N is None else known_N
    rest_N = seconds_N - known_N
    first, second = np.triu_indices(len(sizes_N), 1)
    apart = sizes_N[first] != sizes_N[second]
    first, second = first[apart], second[apart]
    betas = (rest_N[second] - rest_N[first]) / (sizes_N[second] - sizes_N[first])
    alphas = rest_N[first] - betas * sizes_N[first]
    alphas = np.concatenate([alphas, zeros_N, rest_N, [0.0]])
    betas = np.concatenate([betas, rest_N / sizes_N, zeros_N, [0.0]])
    allowed = (alphas >= 0) & (betas >= 0)
    alphas, betas = alphas[allowed], betas[allowed]
    errors = np.zeros(len(alphas))
    for size, known, measured in zip(sizes_N, known_N, seconds_N, strict=True):
        errors += np.abs((known + alphas + betas * size) / measured - 1)
    best = int(errors.argmin())
    return Cost(float(alphas[best]), float(betas[best]))


def ring(link: Cost, ranks: int) -> Cost:
    """All-reduce along a ring: 2 (P - 1) steps, each of a P-th of the buffer."""
    _check(ranks)
    steps = 2 * (ranks - 1)
    return Cost(steps * link.alpha_s, steps / ranks * link.beta_s_per_byte)


def pipelined(phases: Sequence[Cost], chunks: int) -> Cost:
    """Phases that a buffer passes one after the other, in chunks that follow one another.

    The longest phase is paid for all chunks, the others for one; of the latencies those of all
    chunks in the longest phase and of one chunk in the others, as a pipeline fills and empties.
    """
    if chunks < 1:
        raise ValueError(f"a buffer is cut into 1 chunk or more, not {chunks}.")
    betas, alphas = [phase.beta_s_per_byte for phase in phases], [phase.alpha_s for phase in phases]
    return Cost(
        sum(alphas) + (chunks - 1) * max(alphas),
        sum(betas) / chunks + (chunks - 1) / chunks * max(betas),
    )


def trees(link: Cost, ranks: int, colors: int, chunks: int) -> Cost:
    """Multi-color all-reduce: `colors` binary trees at once, each for its part of the buffer.

    A chunk climbs ⌈log2 P⌉ levels and comes down again, chunk after chunk (Kumar et al. 2017,
    arXiv 1711.00705); each rank's link bears at least the ring's share of the bytes.
    """
    _check(ranks)
    colors = min(colors, ranks)
    rounds = 2 * (ranks - 1).bit_length() + chunks - 1
    along = rounds / (chunks * colors) * (2 if ranks > 2 else 1)
    return Cost(rounds * link.alpha_s, max(along, 2 * (ranks - 1) / ranks) * link.beta_s_per_byte)


def all_gather(link: Cost, ranks: int) -> Cost:
    """Top-k's exchange: P - 1 steps, each of one rank's message."""
    _check(ranks)
    return _times(link, ranks - 1)


def _times(cost: Cost, steps: int) -> Cost:
    return Cost(steps * cost.alpha_s, steps * cost.beta_s_per_byte)


def _check(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a collective needs 1 rank or more, not {ranks}.")

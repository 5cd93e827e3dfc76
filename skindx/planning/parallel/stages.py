"""Operators cut into stages of a pipeline, as evenly as their times allow."""

from collections.abc import Sequence


def cut(seconds: Sequence[float], stages: int) -> list[int]:
    """Return how many operators each stage has, so that the longest stage is the shortest possible.

    Stages are neighbours in forward order, and none is empty. Raises ValueError for more stages
    than operators.
    """
    if not 1 <= stages <= len(seconds):
        raise ValueError(f"{len(seconds)} operators cannot be cut into {stages} stages.")
    low, high = max(seconds), sum(seconds)
    for _ in range(60):
        middle = (low + high) / 2
        if len(_filled(seconds, middle)) <= stages:
            high = middle
        else:
            low = middle
    counts = _filled(seconds, high)
    while len(counts) < stages:  # halve what has several: no stage gets longer by that
        widest = counts.index(max(counts))
        half = counts[widest] // 2
        counts[widest : widest + 1] = [half, counts[widest] - half]
    return counts


def _filled(seconds: Sequence[float], limit_s: float) -> list[int]:
    counts, held_s = [0], 0.0
    for own_s in seconds:
        if counts[-1] and held_s + own_s > limit_s * (1 + 1e-12):
            counts.append(0)
            held_s = 0.0
        counts[-1] += 1
        held_s += own_s
    return counts

"""The distribution of answers in the bundle's evaluation, which drift is measured against."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

P_VALUE_EDGES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


def class_shares(metrics: dict[str, Any] | None) -> dict[str, float]:
    """Return how often each class was put first in the bundle's evaluation; empty: unknown."""
    try:
        keys = [skin_class["key"] for skin_class in metrics["classes"]]  # type: ignore[index]
        confusion = metrics["confusion"]  # type: ignore[index]
        called = [sum(row[column] for row in confusion) for column in range(len(keys))]
        total = sum(called)
        return {key: n / total for key, n in zip(keys, called, strict=True)} if total else {}
    except (KeyError, TypeError, IndexError, ValueError):
        return {}


def score_shares(metrics: dict[str, Any] | None) -> dict[float, float]:
    """Return upper edge -> share of images whose highest probability lay in that bin."""
    try:
        bins = {row["high"]: row["n"] for row in metrics["reliability"]}  # type: ignore[index]
        total = sum(bins.values())
        return {float(high): n / total for high, n in bins.items()} if total else {}
    except (KeyError, TypeError, ValueError):
        return {}


def p_value_shares() -> dict[float, float]:
    """Return upper edge -> share; the OOD check's p-value is uniform."""
    return {high: high - low for low, high in pairwise((0.0, *P_VALUE_EDGES))}


def shift(seen: Sequence[float], expected: Sequence[float]) -> float:
    """Return the population stability index of two lists of shares; 0: the same, > 0.25: another.

    PSI = sum (s - e) ln(s / e), the symmetric Kullback-Leibler divergence (Jeffreys 1946); an
    empty bin counts as a thousandth, so that no logarithm is infinite.
    """
    from math import log

    floor = 1e-3
    pairs = [(max(s, floor), max(e, floor)) for s, e in zip(seen, expected, strict=True)]
    return sum((s - e) * log(s / e) for s, e in pairs)

"""The gain of an ensemble against its number of members: mean over the subsets of the members."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.models.combination import EQUAL, pool
from skindx_bench.model_comparison.choice import Single, affordable, best_single, single_losses
from skindx_bench.model_comparison.diversity import disagreement_N
from skindx_bench.model_comparison.passes import Floats, FoldPasses, Ints, Seen

# M = members, N = test images of all folds, C = classes, K = numbers of members

Subset = tuple[int, ...]


@dataclass(frozen=True)
class Gains:
    """What ensembles of some members have over single networks, for each test image.

    Each number is a mean over subsets of 1 for a hit minus 1 for a hit of the other one. Its mean
    over the images of a class, and then over the classes, is a difference of balanced accuracies.
    """

    hits_N: Floats
    over_mean_N: Floats
    """Over the subset's members, their mean."""
    over_better_N: Floats
    """Over the subset's best member, as validation chooses it in each fold."""
    over_same_cost_N: Floats
    """Over the best single network of the same cost or less, as validation chooses it: any member
    of all, in as many views as the subset's cost allows."""
    disagreement_N: Floats


@dataclass(frozen=True)
class Point:
    """The curve at one number of members."""

    members: int
    subsets: tuple[Subset, ...]
    gains: Gains
    """The mean over the subsets."""
    each: tuple[Gains, ...]


def subsets_of(members: int, size: int, most: int, seed: int = 0) -> list[Subset]:
    """Return all subsets of a size, or `most` different ones drawn at random, in order."""
    if math.comb(members, size) <= most:
        return list(itertools.combinations(range(members), size))
    rng = np.random.default_rng([seed, members, size])
    drawn: set[Subset] = set()
    while len(drawn) < most:
        drawn.add(tuple(sorted(rng.choice(members, size, replace=False).tolist())))
    return sorted(drawn)


def curve(folds: Sequence[FoldPasses], most: int, views: int = 1) -> list[Point]:
    """Return a point for every number of members; a subset has the same members in each fold."""
    tables = [_Table.of(fold, views) for fold in folds]
    points = []
    for size in range(1, len(folds[0].names) + 1):
        subsets = subsets_of(len(folds[0].names), size, most)
        each = tuple(_gains(tables, subset) for subset in subsets)
        points.append(Point(size, tuple(subsets), _mean(each), each))
    return points


def gain_of(folds: Sequence[FoldPasses], chosen: Sequence[Subset], views: int = 1) -> Gains:
    """Return the gains of one ensemble, with members of its own in each fold."""
    tables = [_Table.of(fold, views) for fold in folds]
    parts = [_gains([table], subset) for table, subset in zip(tables, chosen, strict=True)]
    return Gains(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)))


def limit_weights(sizes: Sequence[int]) -> Floats:
    """Return the weights by which gains at these numbers of members make a in a (1 - 1/k).

    The least-squares fit is a weighted sum of the gains, so that it has an interval as they have.
    a is the gain of infinitely many members of the kind.
    """
    reach_K = 1 - 1 / np.array(sizes, dtype=float)
    weights_K: Floats = reach_K / (reach_K**2).sum()
    return weights_K


@dataclass(frozen=True)
class _Table:
    """What the subsets of a fold share: the losses on validation, and the hits on test."""

    fold: FoldPasses
    views: int
    losses: dict[Single, float]
    hits: dict[Single, Floats]

    @classmethod
    def of(cls, fold: FoldPasses, views: int) -> "_Table":
        return cls(fold, views, single_losses(fold.validation), _hits(fold.test))


def _hits(test: Seen) -> dict[Single, Floats]:
    return {
        (member, views): _hits_of(own_NC, test.truth_N)
        for views, members_MNC in test.members.items()
        for member, own_NC in enumerate(members_MNC)
    }


def _hits_of(probabilities_NC: Floats, truth_N: Ints) -> Floats:
    hits_N: Floats = (probabilities_NC.argmax(axis=1) == truth_N).astype(np.float64)
    return hits_N


def _gains(tables: Sequence[_Table], subset: Subset) -> Gains:
    parts = []
    for table in tables:
        members_MNC = table.fold.test.members[table.views][list(subset)]
        hits_N = _hits_of(pool(members_MNC, EQUAL), table.fold.test.truth_N)
        own = [(member, table.views) for member in subset]
        better = best_single(table.losses, own)
        within = affordable(table.losses, table.fold.flops_M, subset, table.views)
        same_cost = best_single(table.losses, within)
        parts.append(
            (
                hits_N,
                hits_N - np.mean([table.hits[single] for single in own], axis=0),
                hits_N - table.hits[better],
                hits_N - table.hits[same_cost],
                disagreement_N(members_MNC),
            )
        )
    return Gains(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _columns(gains: Gains) -> tuple[Floats, ...]:
    return (
        gains.hits_N,
        gains.over_mean_N,
        gains.over_better_N,
        gains.over_same_cost_N,
        gains.disagreement_N,
    )


def _mean(each: Sequence[Gains]) -> Gains:
    return Gains(*(np.mean(columns, axis=0) for columns in zip(*map(_columns, each), strict=True)))

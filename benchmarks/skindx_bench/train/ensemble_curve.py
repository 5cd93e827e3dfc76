"""Gain and diversity of ensembles against their number of members, over subsets of the members.

Choices are made on the validation images of a fold; no test image is seen. Members are chosen by
the log loss, weighed so that every class counts alike; a rival is chosen by the figure that is
compared, here balanced accuracy: chosen by another one it may be the worst of all, and the gain
over it an artefact. Every figure of diversity is a mean over images of one number, so that it has
an interval over groups.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from skindx.metrics import Statistic
from skindx.models.combination import EQUAL, log, pool
from skindx_bench.train.ensemble_passes import FoldPasses, Seen

# M = members, N = images, C = classes

Single = tuple[int, int]
"""A member's number and its views."""
LEAST_COST = 0.9
"""One network of an ensemble's cost has at least this share of it."""

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def balanced_log_loss(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean over the present classes of their mean log loss, in nats."""
    loss_N = -log(probabilities_NC[np.arange(len(truth_N)), truth_N])
    return Statistic.class_mean(loss_N, truth_N, probabilities_NC.shape[1]).value


def single_errors(validation: Seen) -> dict[Single, float]:
    """Return 1 - balanced accuracy of every member in every number of views."""
    return {
        (member, views): 1 - Statistic.balanced_accuracy(own_NC, validation.truth_N).value
        for views, members_MNC in validation.members.items()
        for member, own_NC in enumerate(members_MNC)
    }


def best_single(errors: dict[Single, float], among: Iterable[Single]) -> Single:
    """Return the single network with the least error; of equals the first."""
    return min(among, key=errors.__getitem__)


def of_its_cost(
    flops_M: Sequence[int], counts: Sequence[int], members: Sequence[int], views: int = 1
) -> list[Single]:
    """Return each single network that costs at least 0.9 of what these members do together.

    A network's cost is its operations of one pass, times its views; it sees the fewest of `counts`
    that suffice. A cheaper network is no network of their cost.
    """
    least = LEAST_COST * sum(flops_M[member] for member in members) * views
    return [
        (member, min(enough))
        for member, flops in enumerate(flops_M)
        if (enough := [seen for seen in counts if flops * seen >= least])
    ]


def choose_members(validation: Seen, views: int = 1) -> tuple[int, ...]:
    """Return the members of the ensemble that forward selection takes, ascending.

    From the best member on, the one that helps most is added, all with equal weight (Caruana et
    al. 2004, without replacement). Of the ensembles on that path the one with the least loss is
    taken, of equals the smaller.
    """
    members_MNC = validation.members[views]
    left = list(range(len(members_MNC)))
    taken: list[int] = []
    path: list[tuple[float, tuple[int, ...]]] = []
    while left:
        tried = {
            member: balanced_log_loss(
                pool(members_MNC[[*taken, member]], EQUAL), validation.truth_N
            )
            for member in left
        }
        best = min(left, key=tried.__getitem__)
        left.remove(best)
        taken.append(best)
        path.append((tried[best], tuple(sorted(taken))))
    return min(path, key=lambda step: (step[0], len(step[1])))[1]


# M = members, P = pairs of members, N = images, C = classes, D = bootstrap draws, F = features


_NOTHING = 1e-12


def disagreement_N(members_MNC: Floats) -> Floats:  # noqa: N802
    """Return the share of the pairs of members that name different classes, for each image."""
    said_MN = members_MNC.argmax(axis=2)
    different_MMN = said_MN[:, None] != said_MN[None, :]
    share_N: Floats = _mean_of_pairs(different_MMN.astype(float))
    return share_N


def ambiguity_N(members_MNC: Floats) -> Floats:  # noqa: N802
    """Return what the geometric mean takes off the members' mean log loss, in nats, never below 0.

    -log sum_c exp(mean_m log p_m(c)): exact whatever the label is, and the mean divergence of the
    members from their geometric mean (Heskes 1998, "Bias/variance decompositions for
    likelihood-based estimators", equations 10 to 12).
    """
    gap_N: Floats = -logsumexp(log(members_MNC).mean(axis=0), axis=1)
    return gap_N


def averaging_gain_N(members_MNC: Floats, truth_N: Ints) -> Floats:  # noqa: N802
    """Return what the mean probability takes off the members' mean log loss, in nats, at least 0.

    log mean_m p_m(y) - mean_m log p_m(y): the gap of Jensen's inequality. Bundles combine members
    by the mean probability; this gap depends on the label, unlike the ambiguity.
    """
    true_MN = members_MNC[:, np.arange(len(truth_N)), truth_N]
    gap_N: Floats = log(true_MN.mean(axis=0)) - log(true_MN).mean(axis=0)
    return gap_N


def error_products_N(members_MNC: Floats, truth_N: Ints) -> tuple[Floats, Floats]:  # noqa: N802
    """Return the mean squared error of the members, and the mean product of the errors of a pair.

    A member's error on an image is its probabilities minus the one-hot truth, so its squared
    length is the Brier score. With d and o, the means of both over images, the mean Brier score of
    all ensembles of k members is o + (d - o) / k exactly: averaging takes off (d - o) (1 - 1/k),
    and no more than d - o = d (1 - rho) with any number of members (Ueda and Nakano 1996,
    "Generalization error of ensemble estimators", equation 9, without bias).
    """
    error_MNC = members_MNC - np.eye(members_MNC.shape[2])[truth_N]
    own_N: Floats = (error_MNC**2).sum(axis=2).mean(axis=0)
    product_MMN = np.einsum("inc,jnc->ijn", error_MNC, error_MNC)
    return own_N, _mean_of_pairs(product_MMN)


def mistake_correlation(right_MN: NDArray[np.bool_], weights_N: Floats) -> Statistic:
    """Return the mean correlation of two members' mistakes, as 0 and 1, over the pairs.

    A pair of which one member is always right or always wrong does not count; NaN without a pair.
    """
    members = len(right_MN)
    first, second = np.triu_indices(members, 1)
    right_NM = right_MN.T.astype(float)
    columns = (np.ones((len(right_NM), 1)), right_NM, right_NM[:, first] * right_NM[:, second])

    def finish(totals_DF: Floats) -> Floats:
        share_DF = totals_DF[:, 1:] / totals_DF[:, :1]
        mean_DM, both_DP = share_DF[:, :members], share_DF[:, members:]
        covariance_DP = both_DP - mean_DM[:, first] * mean_DM[:, second]
        variance_DM = mean_DM * (1 - mean_DM)
        scale_DP = np.sqrt(np.maximum(variance_DM[:, first] * variance_DM[:, second], 0))
        varied_DP = scale_DP > _NOTHING
        correlation_DP = np.divide(
            covariance_DP, scale_DP, out=np.zeros_like(scale_DP), where=varied_DP
        )
        pairs_D = varied_DP.sum(axis=1)
        mean_D = np.full(len(pairs_D), np.nan)
        np.divide(correlation_DP.sum(axis=1), pairs_D, out=mean_D, where=pairs_D > 0)
        return mean_D

    return Statistic(weights_N[:, None] * np.hstack(columns), finish, -1.0, 1.0)


def error_correlation(own_N: Floats, crossed_N: Floats, weights_N: Floats) -> Statistic:
    """Return rho, the mean product of two members' errors over their mean square."""
    features_NF = weights_N[:, None] * np.column_stack([crossed_N, own_N])
    return Statistic(features_NF, lambda totals_DF: totals_DF[:, 0] / totals_DF[:, 1])


def _mean_of_pairs(values_MMN: Floats) -> Floats:
    """Return the mean over the pairs of different members; 0 for a single member."""
    first, second = np.triu_indices(len(values_MMN), 1)
    if not len(first):
        return np.zeros(values_MMN.shape[2])
    mean_N: Floats = values_MMN[first, second].mean(axis=0)
    return mean_N


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
    disagreement_N: Floats


@dataclass(frozen=True)
class CurvePoint:
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


def curve(folds: Sequence[FoldPasses], most: int, views: int = 1) -> list[CurvePoint]:
    """Return a point for every number of members; a subset has the same members in each fold."""
    tables = [_Table.of(fold, views) for fold in folds]
    points = []
    for size in range(1, len(folds[0].names) + 1):
        subsets = subsets_of(len(folds[0].names), size, most)
        each = tuple(_gains(tables, subset) for subset in subsets)
        points.append(CurvePoint(size, tuple(subsets), _mean(each), each))
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
    """What the subsets of a fold share: the errors on validation, and the hits on test."""

    fold: FoldPasses
    views: int
    errors: dict[Single, float]
    hits: dict[Single, Floats]

    @classmethod
    def of(cls, fold: FoldPasses, views: int) -> "_Table":
        return cls(fold, views, single_errors(fold.validation), hits_of_singles(fold.test))


def hits_of_singles(test: Seen) -> dict[Single, Floats]:
    """Return 1 for each image that a member in a number of views names rightly, else 0."""
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
        better = best_single(table.errors, own)
        parts.append(
            (
                hits_N,
                hits_N - np.mean([table.hits[single] for single in own], axis=0),
                hits_N - table.hits[better],
                disagreement_N(members_MNC),
            )
        )
    return Gains(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _columns(gains: Gains) -> tuple[Floats, ...]:
    return (
        gains.hits_N,
        gains.over_mean_N,
        gains.over_better_N,
        gains.disagreement_N,
    )


def _mean(each: Sequence[Gains]) -> Gains:
    return Gains(*(np.mean(columns, axis=0) for columns in zip(*map(_columns, each), strict=True)))

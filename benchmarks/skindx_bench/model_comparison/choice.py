"""Choices on the validation images of a fold: a member, a network of some cost, an ensemble.

No function here takes test images. All choose by the log loss of the validation images, weighed so
that every class counts alike: of two hundred images of which a class has a dozen, it says more than
the balanced accuracy, which one image moves by a point.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from skindx.metrics import Statistic
from skindx.models.combination import EQUAL, log, pool
from skindx_bench.model_comparison.passes import Floats, Ints, Seen

# M = members, N = images, C = classes

Single = tuple[int, int]
"""A member's number and its views."""


def balanced_log_loss(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean over the present classes of their mean log loss, in nats."""
    loss_N = -log(probabilities_NC[np.arange(len(truth_N)), truth_N])
    return Statistic.class_mean(loss_N, truth_N, probabilities_NC.shape[1]).value


def single_losses(validation: Seen) -> dict[Single, float]:
    """Return the loss of every member in every number of views."""
    return {
        (member, views): balanced_log_loss(own_NC, validation.truth_N)
        for views, members_MNC in validation.members.items()
        for member, own_NC in enumerate(members_MNC)
    }


def best_single(losses: dict[Single, float], among: Iterable[Single]) -> Single:
    """Return the single network with the least loss; of equals the first."""
    return min(among, key=losses.__getitem__)


def affordable(
    losses: dict[Single, float], flops_M: Sequence[int], members: Sequence[int], views: int = 1
) -> list[Single]:
    """Return every single network that costs at most what these members do together.

    A network's cost is its operations of one pass, times its views.
    """
    budget = sum(flops_M[member] for member in members) * views
    return [(member, seen) for member, seen in losses if flops_M[member] * seen <= budget]


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

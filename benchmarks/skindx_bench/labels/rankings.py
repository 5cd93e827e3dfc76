"""The rankings of doubtful labels that are compared, the most doubtful first.

N = images, D = dimensions, C = classes
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.review.label_doubts import doubt_order, out_of_fold
from skindx.review.label_evidence import Floats, GroupedKernel, Ints, plant, weigh


@dataclass(frozen=True)
class Given:
    """Labels with planted errors, and what is known of the images."""

    vectors_ND: NDArray[np.float32]
    labels_N: Ints
    groups_N: NDArray[np.str_]
    probabilities_NC: Floats
    """Of the linear classifier, out of fold."""
    kernel_NC: Floats
    """Of the kernel regression, without the image's group."""
    wrong_N: Floats
    """Of the combination."""


def found_shares(
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    *,
    share: float,
    even: float,
    seeds: int,
) -> dict[str, list[float]]:
    """Return for each ranking which share of n planted errors is among its first n, by seed."""
    truth_NC, _ = out_of_fold(vectors_ND, labels_N, groups_N)
    kernel = GroupedKernel(vectors_ND, groups_N)
    found: dict[str, list[float]] = {name: [] for name in RANKINGS}
    for seed in range(seeds):
        # Other streams than those of the errors that the combination plants for itself.
        random = np.random.default_rng((seed, 1_000_003))
        swapped_N, wrong_P = plant(labels_N, truth_NC, share, even, random)
        probabilities_NC, _ = out_of_fold(vectors_ND, swapped_N, groups_N, seed=seed)
        wrong_N, own = weigh(kernel, vectors_ND, swapped_N, groups_N, seed)
        given = Given(
            vectors_ND, swapped_N, groups_N, probabilities_NC, own.probabilities_NC, wrong_N
        )
        for name, ranking in RANKINGS.items():
            first = ranking(given)[: len(wrong_P)]
            found[name].append(float(np.isin(first, wrong_P).mean()))
    return found


def _combined(given: Given) -> Ints:
    return np.argsort(-given.wrong_N, kind="stable")


def _cleanlab(given: Given) -> Ints:
    return doubt_order(given.labels_N, given.probabilities_NC)


def _cleanlab_kernel(given: Given) -> Ints:
    """Return cleanlab's ranking of the predictions that the combination uses."""
    return doubt_order(given.labels_N, given.kernel_NC)


def _cleanlab_margin(given: Given) -> Ints:
    from cleanlab.rank import get_label_quality_scores

    quality_N = get_label_quality_scores(
        given.labels_N, given.probabilities_NC, method="normalized_margin"
    )
    return np.argsort(quality_N, kind="stable")


def _selfclean(given: Given) -> Ints:
    """SelfClean's indicator (Gröger et al. 2024, arXiv 2305.17048, eq. 4).

    The squared distance to the nearest image of the same label over itself and that to the nearest
    of another one. Images of the same group are left out: they would give the answer away.
    """
    return np.argsort(-indicator(given.vectors_ND, given.labels_N, given.groups_N), kind="stable")


def indicator(
    vectors_ND: NDArray[np.float32], labels_N: Ints, groups_N: NDArray[np.str_]
) -> Floats:
    """Return SelfClean's score, near 1 for a label that its neighbours do not have."""
    _, group_N = np.unique(groups_N, return_inverse=True)
    scores = []
    for row, vector_D in enumerate(vectors_ND):
        distance_N = 1 - (vectors_ND @ vector_D).astype(np.float64)
        other_N = group_N != group_N[row]
        same_N = labels_N == labels_N[row]
        same = distance_N[other_N & same_N].min(initial=2.0)
        other = distance_N[other_N & ~same_N].min(initial=2.0)
        scores.append(same**2 / max(same**2 + other**2, 1e-12))
    return np.array(scores)


RANKINGS: dict[str, Callable[[Given], Ints]] = {
    "combined": _combined,
    "cleanlab": _cleanlab,
    "cleanlab kernel": _cleanlab_kernel,
    "cleanlab margin": _cleanlab_margin,
    "selfclean": _selfclean,
}

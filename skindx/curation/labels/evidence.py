"""Evidence for and against each label: several views of one image, none of its own group.

N = images, C = classes, D = dimensions, F = kinds of evidence, K = neighbours
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.curation.labels.kernel import GroupedKernel, as_probabilities

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NAMES = (
    *("predicted", "predicted, log", "predicted margin"),
    *("neighbours", "neighbours margin", "training margin", "frequency", "uncertainty"),
    *("against its class", "group agrees", "group is larger"),
)
"""What the columns of the evidence are."""

_NEIGHBOURS, _SHARPNESS, _BLOCK = 12, 0.05, 2048
_EPOCHS, _RATE = 60, 20.0
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for the labels as they are given."""

    columns_NF: Floats
    """As `NAMES`; each standardised, so that those of other labels can be compared."""
    probabilities_NC: Floats
    """Of each class, by the images of other groups."""


def gather(
    kernel: GroupedKernel,
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    penalty: float,
) -> Evidence:
    """Return the evidence for these labels; vectors have length 1."""
    scores_NC = kernel.predict(labels_N, penalty)
    probabilities_NC = as_probabilities(scores_NC)
    votes_NC = _votes(vectors_ND, labels_N, groups_N, scores_NC.shape[1])
    given_N, margin_N = _given_and_margin(scores_NC, labels_N)
    own_N, size_N = _group(labels_N, groups_N)
    columns = [
        given_N,
        np.log(probabilities_NC[np.arange(len(labels_N)), labels_N]),
        margin_N,
        *_given_and_margin(np.log(votes_NC), labels_N),
        training_margin(vectors_ND, labels_N),
        np.log(np.bincount(labels_N) / len(labels_N))[labels_N],
        -(probabilities_NC * np.log(probabilities_NC)).sum(axis=1),
        given_N - _class_mean(given_N, labels_N),
        own_N,
        (size_N > 0).astype(float),
    ]
    raw_NF = np.stack(columns, axis=1)
    spread_F = raw_NF.std(axis=0)
    scaled_NF = (raw_NF - raw_NF.mean(axis=0)) / np.where(spread_F > _LEAST, spread_F, 1.0)
    return Evidence(scaled_NF, probabilities_NC)


def training_margin(vectors_ND: NDArray[np.float32], labels_N: Ints) -> Floats:
    """Return the area under the margin (Pleiss et al. 2020, arXiv 2001.10528, eq. 1).

    The mean, over the epochs of a linear classifier, of the given label's logit minus the largest
    other one: what is labelled wrongly is learned late, against its neighbours.
    """
    classes = int(labels_N.max()) + 1
    is_given_NC = np.eye(classes, dtype=bool)[labels_N]
    x_ND = vectors_ND.astype(np.float64)
    weight_DC, bias_C = np.zeros((x_ND.shape[1], classes)), np.zeros(classes)
    total_N = np.zeros(len(labels_N))
    for _ in range(_EPOCHS):
        logits_NC = x_ND @ weight_DC + bias_C
        total_N += logits_NC[is_given_NC] - np.where(is_given_NC, -np.inf, logits_NC).max(axis=1)
        share_NC = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
        share_NC /= share_NC.sum(axis=1, keepdims=True)
        slope_NC = (share_NC - is_given_NC) / len(labels_N)
        weight_DC -= _RATE * (x_ND.T @ slope_NC)
        bias_C -= _RATE * slope_NC.sum(axis=0)
    return total_N / _EPOCHS


def _given_and_margin(scores_NC: Floats, labels_N: Ints) -> tuple[Floats, Floats]:
    rows = np.arange(len(labels_N))
    given_N = scores_NC[rows, labels_N]
    others_NC = scores_NC.copy()
    others_NC[rows, labels_N] = -np.inf
    return given_N, given_N - others_NC.max(axis=1)


def _votes(
    vectors_ND: NDArray[np.float32], labels_N: Ints, groups_N: NDArray[np.str_], classes: int
) -> Floats:
    """Return the votes of the nearest images of other groups, by their cosine."""
    _, group_N = np.unique(groups_N, return_inverse=True)
    most = min(_NEIGHBOURS, len(labels_N) - 1)
    parts = []
    for at in range(0, len(labels_N), _BLOCK):
        block = slice(at, at + _BLOCK)
        cosine_BN = vectors_ND[block] @ vectors_ND.T
        cosine_BN[group_N[block, None] == group_N[None]] = -np.inf
        near_BK = np.argpartition(-cosine_BN, most - 1, axis=1)[:, :most]
        own_BK = np.take_along_axis(cosine_BN, near_BK, 1)
        weight_BK = np.exp((own_BK - 1) / _SHARPNESS, dtype=np.float64)
        votes_BC = np.full((len(own_BK), classes), 1e-3) * weight_BK.sum(1, keepdims=True) + 1e-12
        np.add.at(votes_BC, (np.arange(len(own_BK))[:, None], labels_N[near_BK]), weight_BK)
        parts.append(votes_BC / votes_BC.sum(axis=1, keepdims=True))
    return np.concatenate(parts)


def _class_mean(values_N: Floats, labels_N: Ints) -> Floats:
    total_C = np.bincount(labels_N, weights=values_N)
    mean_C = total_C / np.maximum(np.bincount(labels_N), 1)
    return np.asarray(mean_C[labels_N])


def _group(labels_N: Ints, groups_N: NDArray[np.str_]) -> tuple[Floats, Ints]:
    """Return how far the others of an image's group agree with it, -1 to 1, and how many they are.

    A group holds copies and photos of one lesion: their labels should be the same.
    """
    _, group_N = np.unique(groups_N, return_inverse=True)
    count_GC = np.zeros((int(group_N.max()) + 1, int(labels_N.max()) + 1))
    np.add.at(count_GC, (group_N, labels_N), 1)
    same_N = count_GC[group_N, labels_N] - 1
    size_N = count_GC[group_N].sum(axis=1) - 1
    agrees_N = np.where(size_N > 0, (2 * same_N - size_N) / np.maximum(size_N, 1), 0.0)
    return agrees_N, size_N.astype(np.intp)

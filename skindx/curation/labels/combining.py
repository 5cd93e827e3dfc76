"""Doubts ranked by all the evidence at once, weighed by errors planted among the labels.

Which evidence is worth how much depends on images and embeddings. So errors are planted among the
labels as they are given, half of them drawn evenly and half as the regression confuses the classes,
and a logistic regression learns to tell the planted ones by their evidence. It then ranks the
labels as they are given. Which of these are wrong is unknown, and planting does not need it.

N = images, C = classes
"""

import numpy as np
from numpy.typing import NDArray

from skindx.curation.labels.evidence import Evidence, Floats, Ints, gather
from skindx.curation.labels.kernel import GroupedKernel

_SHARE, _ROUNDS = 0.05, 6


def combined_doubts(
    vectors_ND: NDArray[np.float32], labels_N: Ints, groups_N: NDArray[np.str_], seed: int
) -> Floats:
    """Return how likely each label is wrong, 0 to 1, as far as planted errors tell."""
    kernel = GroupedKernel(vectors_ND, groups_N)
    return weigh(kernel, vectors_ND, labels_N, groups_N, seed)[0]


def weigh(
    kernel: GroupedKernel,
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    seed: int,
) -> tuple[Floats, Evidence]:
    """Return the same with a kernel that is there already, and the evidence of these labels."""
    from sklearn.linear_model import LogisticRegression

    penalty = kernel.best_penalty(labels_N)
    own = gather(kernel, vectors_ND, labels_N, groups_N, penalty)
    rows, planted = [], []
    for turn in range(_ROUNDS):
        random = np.random.default_rng((seed, turn))
        swapped_N, wrong_P = plant(labels_N, own.probabilities_NC, _SHARE, 0.5, random)
        evidence = gather(kernel, vectors_ND, swapped_N, groups_N, penalty)
        rows.append(evidence.columns_NF)
        planted.append(np.isin(np.arange(len(labels_N)), wrong_P))
    model = LogisticRegression(C=0.1, max_iter=500)
    model.fit(np.concatenate(rows), np.concatenate(planted))
    return np.asarray(model.predict_proba(own.columns_NF)[:, 1]), own


def plant(
    labels_N: Ints,
    probabilities_NC: Floats,
    share: float,
    even: float,
    random: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Return labels of which a share is swapped, and where.

    `even`: this part goes to any other class alike, the rest as a classifier confuses the classes.
    A class keeps at least half of its images.
    """
    classes = probabilities_NC.shape[1]
    count = max(1, round(share * len(labels_N)))
    left_C = np.bincount(labels_N, minlength=classes) // 2
    wrong: list[int] = []
    for row in random.permutation(len(labels_N)).tolist():
        if len(wrong) < count and left_C[labels_N[row]] > 0:
            left_C[labels_N[row]] -= 1
            wrong.append(row)
    confused_CC = np.full((classes, classes), 1e-9)
    np.add.at(confused_CC, labels_N, probabilities_NC)
    np.fill_diagonal(confused_CC, 0)
    confused_CC /= confused_CC.sum(axis=1, keepdims=True)
    swapped_N = labels_N.copy()
    for row in wrong:
        given = labels_N[row]
        if random.random() < even:
            swapped_N[row] = (given + random.integers(1, classes)) % classes
        else:
            swapped_N[row] = random.choice(classes, p=confused_CC[given])
    return swapped_N, np.array(wrong, np.intp)

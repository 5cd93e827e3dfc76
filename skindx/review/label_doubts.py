"""Doubtful labels, ranked by all evidence at once; how many, says confident learning.

Confident learning (Northcutt, Jiang, Chuang 2021, arXiv 1911.00068) as cleanlab has it, over
probabilities that no image of the same group has a part in. It lists doubtful labels as CSV, flags
them for the review page, and removes nothing.

N = images
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.data.decisions import Flag, write_flags
from skindx.data.embedding_files import Embeddings
from skindx.data.manifest import Record
from skindx.data.tables.cells import no_formula

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

PENALTIES = (0.05, 0.1, 0.2, 0.4, 0.8)
_LANDMARKS = 2500
_JITTER = 1e-9


class GroupedKernel:
    """The kernel of these images; `predict` answers for any labels of them.

    Exact up to 2,500 images. Beyond, so many of them, drawn at random, span the predictions; memory
    is N x M numbers.
    """

    def __init__(
        self,
        vectors_ND: NDArray[np.float32],
        groups_N: NDArray[np.str_],
        landmarks: int = _LANDMARKS,
    ) -> None:
        count = len(vectors_ND)
        chosen_M = np.random.default_rng(0).permutation(count)[:landmarks]
        distance_NM = _squared_distances(vectors_ND, vectors_ND[chosen_M])
        kernel_NM = np.exp(-distance_NM / max(float(distance_NM.mean()), _JITTER)) + 1
        values_M, vectors_MM = np.linalg.eigh(kernel_NM[chosen_M])
        used = values_M > _JITTER * values_M[-1]
        features_NM = kernel_NM @ (vectors_MM[:, used] / np.sqrt(values_M[used]))
        self._power_M, turn_MM = np.linalg.eigh(features_NM.T @ features_NM)
        self._basis_NM = features_NM @ turn_MM
        _, group_N = np.unique(groups_N, return_inverse=True)
        order_N = np.argsort(group_N, kind="stable")
        groups = np.split(order_N, np.flatnonzero(np.diff(group_N[order_N])) + 1)
        self._several = [rows for rows in groups if len(rows) > 1]

    def predict(self, labels_N: Ints, penalty: float) -> Floats:
        """Return scores N x C, near 1 for the class that the images of other groups suggest.

        They sum to about 1 and may leave 0 to 1.
        """
        given_NC = np.eye(int(labels_N.max()) + 1)[labels_N]
        shrink_M = 1 / (np.maximum(self._power_M, 0) + penalty)
        fitted_NC = self._basis_NM @ (shrink_M[:, None] * (self._basis_NM.T @ given_NC))
        error_NC = given_NC - fitted_NC
        leverage_N = (self._basis_NM**2) @ shrink_M
        left_NC = error_NC / (1 - leverage_N)[:, None]
        for rows in self._several:
            basis_GM = self._basis_NM[rows]
            remains_GG = np.eye(len(rows)) - (basis_GM * shrink_M) @ basis_GM.T
            left_NC[rows] = np.linalg.solve(remains_GG, error_NC[rows])
        return np.asarray(given_NC - left_NC)

    def best_penalty(self, labels_N: Ints) -> float:
        """Return the penalty whose predictions miss these labels least, squared."""
        given_NC = np.eye(int(labels_N.max()) + 1)[labels_N]
        errors = [((self.predict(labels_N, at) - given_NC) ** 2).sum() for at in PENALTIES]
        return PENALTIES[int(np.argmin(errors))]


def as_probabilities(scores_NC: Floats) -> Floats:
    """Return the scores, at least 0.001 each, as shares of 1."""
    least_NC = np.maximum(scores_NC, 1e-3)
    return np.asarray(least_NC / least_NC.sum(axis=1, keepdims=True))


def _squared_distances(left_ND: NDArray[np.float32], right_MD: NDArray[np.float32]) -> Floats:
    squares_NM = (left_ND**2).sum(1)[:, None] + (right_MD**2).sum(1) - 2 * left_ND @ right_MD.T
    return np.asarray(np.maximum(squares_NM, 0), np.float64)


NAMES = (
    *("predicted", "predicted, log", "predicted margin"),
    *("neighbours", "neighbours margin", "training margin", "frequency", "uncertainty"),
    *("against its class", "group agrees", "group is larger"),
)
"""Names of the columns of the evidence."""

_NEIGHBOURS, _SHARPNESS, _BLOCK = 12, 0.05, 2048
_EPOCHS, _RATE = 60, 20.0
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class LabelEvidence:
    """Evidence for the labels as they are given."""

    columns_NF: Floats
    """Columns as in `NAMES`, each standardised so that different labels can be compared."""
    probabilities_NC: Floats
    """Probability of each class, from images of other groups."""


def gather(
    kernel: GroupedKernel,
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    penalty: float,
) -> LabelEvidence:
    """Return the evidence for these labels; vectors have length 1."""
    scores_NC = kernel.predict(labels_N, penalty)
    probabilities_NC = as_probabilities(scores_NC)
    votes_NC = _votes(vectors_ND, labels_N, groups_N, scores_NC.shape[1])
    given_N, margin_N = _given_and_margin(scores_NC, labels_N)
    agrees_N, size_N = _group(labels_N, groups_N)
    columns = [
        given_N,
        np.log(probabilities_NC[np.arange(len(labels_N)), labels_N]),
        margin_N,
        *_given_and_margin(np.log(votes_NC), labels_N),
        training_margin(vectors_ND, labels_N),
        np.log(np.bincount(labels_N) / len(labels_N))[labels_N],
        -(probabilities_NC * np.log(probabilities_NC)).sum(axis=1),
        given_N - _class_mean(given_N, labels_N),
        agrees_N,
        (size_N > 0).astype(float),
    ]
    raw_NF = np.stack(columns, axis=1)
    spread_F = raw_NF.std(axis=0)
    scaled_NF = (raw_NF - raw_NF.mean(axis=0)) / np.where(spread_F > _LEAST, spread_F, 1.0)
    return LabelEvidence(scaled_NF, probabilities_NC)


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
    rivals_NC = scores_NC.copy()
    rivals_NC[rows, labels_N] = -np.inf
    return given_N, given_N - rivals_NC.max(axis=1)


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
        cosine_BK = np.take_along_axis(cosine_BN, near_BK, 1)
        weight_BK = np.exp((cosine_BK - 1) / _SHARPNESS, dtype=np.float64)
        votes_BC = (
            np.full((len(cosine_BK), classes), 1e-3) * weight_BK.sum(1, keepdims=True) + 1e-12
        )
        np.add.at(votes_BC, (np.arange(len(cosine_BK))[:, None], labels_N[near_BK]), weight_BK)
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


_SHARE, _ROUNDS = 0.05, 6


def weigh(
    kernel: GroupedKernel,
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    seed: int,
) -> tuple[Floats, LabelEvidence]:
    """Return how likely each label is wrong, as far as planted errors tell, and the evidence."""
    from sklearn.linear_model import LogisticRegression

    penalty = kernel.best_penalty(labels_N)
    given = gather(kernel, vectors_ND, labels_N, groups_N, penalty)
    rows, planted = [], []
    for turn in range(_ROUNDS):
        random = np.random.default_rng((seed, turn))
        swapped_N, wrong_P = plant(labels_N, given.probabilities_NC, _SHARE, 0.5, random)
        evidence = gather(kernel, vectors_ND, swapped_N, groups_N, penalty)
        rows.append(evidence.columns_NF)
        planted.append(np.isin(np.arange(len(labels_N)), wrong_P))
    model = LogisticRegression(C=0.1, max_iter=500)
    model.fit(np.concatenate(rows), np.concatenate(planted))
    return np.asarray(model.predict_proba(given.columns_NF)[:, 1]), given


def plant(
    labels_N: Ints, probabilities_NC: Floats, share: float, even: float, random: np.random.Generator
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


LISTED = 0.1
"""Largest share of the dataset that the list holds: a person has to read it."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One image whose label is in doubt, the greatest doubt first."""

    rank: int
    sha256: str
    path: str
    split: str
    given: str
    suggested: str
    score: float
    """Probability of the given label, from images of other groups, 0..1."""
    suggested_score: float
    source_url: str

    @property
    def flag(self) -> Flag:
        """The doubt as a flag for the review."""
        detail = f"labelled {self.given}, looks like {self.suggested} ({self.suggested_score:.2f})"
        return Flag(self.sha256, "label", 1 - self.score, detail)


@dataclass(frozen=True, slots=True)
class LabelReview:
    """The ranked doubts, and how far to trust them."""

    doubts: tuple[Doubt, ...]
    images: int
    suspected: int
    """Labels that confident learning takes for wrong; the list may be cut shorter."""
    accuracy: float
    """How often the images of other groups predict the given label."""
    model: str


def review_labels(
    records: Sequence[Record], embeddings: Embeddings, *, listed: float = LISTED, seed: int = 0
) -> LabelReview:
    """Rank the labels in doubt, all splits together; at most `listed` of all images.

    Raises UserError when an image has no embedding, for a class in a single group, and without the
    `audit` extra.
    """
    require_extra("audit", "cleanlab", purpose="the label review")
    from cleanlab.filter import find_label_issues

    classes, labels_N = _labels(records)
    vectors_ND, groups_N = vectors_of(records, embeddings), _groups(records)
    if any(len(set(groups_N[labels_N == number])) < 2 for number in range(len(classes))):
        raise UserError(
            "all images of one class are in one group (such as one patient), but labels are "
            "checked with images of other groups; add images of this class from other patients, "
            "or remove the class."
        )
    kernel = GroupedKernel(vectors_ND, groups_N)
    wrong_N, evidence = weigh(kernel, vectors_ND, labels_N, groups_N, seed)
    probabilities_NC = evidence.probabilities_NC
    suspected_N = find_label_issues(labels_N, probabilities_NC, n_jobs=1, verbose=False)
    ranked = np.argsort(-wrong_N, kind="stable")[: int(suspected_N.sum())].tolist()
    doubts = []
    for rank, i in enumerate(ranked[: max(1, round(listed * len(records)))], 1):
        best = int(probabilities_NC[i].argmax())
        doubts.append(
            Doubt(
                rank=rank,
                sha256=records[i].sha256,
                path=records[i].path,
                split=records[i].split,
                given=records[i].label,
                suggested=classes[best],
                score=float(probabilities_NC[i, labels_N[i]]),
                suggested_score=float(probabilities_NC[i, best]),
                source_url=records[i].source_url,
            )
        )
    accuracy = float((probabilities_NC.argmax(axis=1) == labels_N).mean())
    return LabelReview(tuple(doubts), len(records), len(ranked), accuracy, embeddings.model)


def vectors_of(records: Sequence[Record], embeddings: Embeddings) -> NDArray[np.float32]:
    """Return vectors_ND of the records, in their order. Raises UserError when one has none."""
    known_N, vectors_ND = embeddings.select([record.sha256 for record in records])
    if len(known_N) < len(records):
        raise UserError(
            f"{len(records) - len(known_N)} of {len(records)} images have no embedding; run "
            "`skindx dedup embed` on the dataset again."
        )
    return vectors_ND


def _labels(records: Sequence[Record]) -> tuple[list[str], Ints]:
    classes, labels_N = np.unique([record.label for record in records], return_inverse=True)
    if len(classes) < 2:
        raise UserError(
            f"a label review needs at least two classes, but the dataset has {len(classes)}; add "
            "images of another class."
        )
    return classes.tolist(), labels_N


def _groups(records: Sequence[Record]) -> NDArray[np.str_]:
    return np.array([record.group for record in records])


TABLE = "label_review.csv"


def write_review(dataset: Path, review: LabelReview) -> None:
    """Write the table and the flags of reason `label` into the dataset folder."""
    names = [field.name for field in dataclasses.fields(Doubt)]
    rows = (map(no_formula, dataclasses.astuple(doubt)) for doubt in review.doubts)
    write_csv(dataset / TABLE, names, rows)
    write_flags(dataset, [doubt.flag for doubt in review.doubts], ["label"])

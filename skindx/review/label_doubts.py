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
from skindx.data.image_tables import Embeddings
from skindx.data.manifest import Record
from skindx.review.label_evidence import GroupedKernel, Ints, weigh

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
    """Of the given label, by images of other groups, as a share of all classes."""
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
    records: Sequence[Record],
    embeddings: Embeddings,
    *,
    listed: float = LISTED,
    seed: int = 0,
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
            "a class has all its images in one group, so nothing else can judge them; add images "
            "or take the class out."
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
    known_N, vectors_ND = embeddings.of([record.sha256 for record in records])
    if len(known_N) < len(records):
        raise UserError(
            f"{len(records) - len(known_N)} of {len(records)} images have no embedding; make "
            f"the table again with `skindx dedup embed`."
        )
    return vectors_ND


def _labels(records: Sequence[Record]) -> tuple[list[str], Ints]:
    classes, labels_N = np.unique([record.label for record in records], return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"labels need two classes to be doubted, and there is {len(classes)}.")
    return classes.tolist(), labels_N


def _groups(records: Sequence[Record]) -> NDArray[np.str_]:
    return np.array([record.group for record in records])


TABLE = "label_review.csv"


def write_review(dataset: Path, review: LabelReview) -> None:
    """Write the table and the flags of reason `label` into the dataset folder."""
    names = [field.name for field in dataclasses.fields(Doubt)]
    write_csv(dataset / TABLE, names, map(dataclasses.astuple, review.doubts))
    write_flags(dataset, [doubt.flag for doubt in review.doubts], ["label"])

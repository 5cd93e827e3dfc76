"""Odd images for a person to look at: by cleanvision's quality checks, or by their embeddings.

Both write flags and remove nothing.
"""

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.progress import Progress, silent
from skindx.data.decisions import Flag, write_flags
from skindx.data.image_tables import Embeddings, OodScores, write_ood
from skindx.data.manifest import Record, read_image, read_manifest
from skindx.models.ood.ood_detectors import unusual_scores

if TYPE_CHECKING:
    from PIL.Image import Image


ISSUES = (
    "dark",
    "light",
    "blurry",
    "low_information",
    "odd_aspect_ratio",
    "odd_size",
    "grayscale",
    "near_duplicates",
)


def audit_quality(dataset: Path, progress: Progress = silent) -> Mapping[str, int]:
    """Flag what cleanvision finds odd (reason `quality`); return how many images for each issue.

    Its thresholds are its own, made for photographs of everything: many a sound dermoscopic
    image is dark or blurry to it. Raises UserError without the `audit` extra.
    """
    require_extra("audit", "cleanvision", purpose="the quality audit")
    from cleanvision import Imagelab

    records = read_manifest(dataset)
    images = _DecodedImages(dataset, records, progress)
    lab = Imagelab(torchvision_dataset=images)
    # It draws bars of its own on the error stream.
    with contextlib.redirect_stderr(io.StringIO()):
        lab.find_issues({issue: {} for issue in ISSUES}, n_jobs=1, verbose=False)
    table = lab.issues
    flags = [
        Flag(records[i].sha256, "quality", 1 - float(table[f"{issue}_score"][i]), _detail(issue))
        for issue in ISSUES
        for i in table.index[table[f"is_{issue}_issue"]]
    ]
    write_flags(dataset, flags, ["quality"])
    return dict(Counter(flag.detail for flag in flags).most_common())


def _detail(issue: str) -> str:
    return issue.replace("_", " ")


class _DecodedImages:
    """The images as cleanvision takes them from torchvision: decoded by us, never a file."""

    def __init__(self, dataset: Path, records: Sequence[Record], progress: Progress) -> None:
        self._dataset, self._records, self._progress = dataset, records, progress
        self._read = 0

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> "tuple[Image]":
        from PIL import Image

        image = Image.fromarray(read_image(self._dataset, self._records[index]))
        self._read += 1
        # Each image is asked for twice: for its own figures, and for its duplicates.
        self._progress("quality", min(self._read, 2 * len(self)), 2 * len(self))
        return (image,)


FEWEST = 40
"""Images from which on it can be said what is usual."""


def off_topic(dataset: Path, embeddings: Embeddings, out: Path, threshold: float) -> OodScores:
    """Score the manifest's images, write `out`, and flag those from `threshold` on (`off-topic`).

    Raises UserError for too few images with an embedding.
    """
    sha256s = [record.sha256 for record in read_manifest(dataset)]
    known_N, vectors_ND = embeddings.of(sha256s)
    if len(known_N) < FEWEST:
        raise UserError(
            f"{len(known_N)} of the {len(sha256s)} images of {dataset} have an embedding, and "
            f"what is usual can be said from {FEWEST} on; make it again with `skindx dedup embed`."
        )
    scores = OodScores(
        tuple(sha256s[i] for i in known_N), unusual_scores(vectors_ND), embeddings.model
    )
    write_ood(out, scores)
    write_flags(dataset, _flags(scores, threshold), ["off-topic"])
    return scores


def _flags(scores: OodScores, threshold: float) -> Iterable[Flag]:
    for sha256, score in zip(scores.sha256s, scores.scores_N.tolist(), strict=True):
        if score >= threshold:
            share = score / (score + threshold)
            yield Flag(sha256, "off-topic", share, f"unusual: {score:.1f} by {scores.model}")

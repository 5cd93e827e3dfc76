"""The wrong answers that a report shows, with small pictures where their licence allows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.data.publish.published_rows import withheld_of
from skindx.evaluation.answers import Answers, Floats
from skindx.evaluation.breakdown import called_positive
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.models.urgent_risk import urgent_risks

# N = images

Pictures = Literal["licensed", "local", "none"]
"""Pictures that `skindx publish` would give away; also those that name no licence; none."""

SHOWN = 12
_SIDE = 176  # pixels; shown at half of it, so that it is sharp on a fine screen and on paper


def check_pictures(pictures: str) -> None:
    """Raise UserError for a word that is none of the choices."""
    if pictures not in get_args(Pictures):
        choices = ", ".join(get_args(Pictures))
        raise UserError(f"pictures is {pictures!r}; it must be one of {choices}.")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One image named wrongly, with a small JPEG of it."""

    path: str
    truth: str
    predicted: str
    confidence: float
    risk: float
    """The summed probability of the urgent classes."""
    jpeg: bytes = b""
    """b"" where it is not shown, for the reason `withheld`."""
    withheld: str = ""
    credit: str = ""


@dataclass(frozen=True, slots=True)
class MistakeStrip:
    """Some mistakes under one heading, at most one a group."""

    title: str
    order: str
    count: int
    """All such mistakes."""
    mistakes: tuple[Mistake, ...]


def worst_mistakes(
    records: Sequence[Record],
    answers: Answers,
    dataset: Path,
    read: Callable[[Record], NDArray[np.uint8]],
    pictures: Pictures = "licensed",
) -> list[MistakeStrip]:
    """Return up to 12 urgent images that are not called urgent, and up to 12 confident mistakes.

    `read` returns an image's pixels_HWC; it is asked only for images that are shown. No choice
    shows an image whose licence forbids it, or that a person or an open flag keeps private.
    """
    risk_N = urgent_risks(answers.ensemble_NC, np.flatnonzero(answers.urgent_C).tolist())
    confidence_N = answers.ensemble_NC.max(axis=1)
    called_N = called_positive(answers, answers.urgent_C, answers.urgent_risk)
    wrong = (
        (
            "Urgent images that are not called urgent",
            "Least urgent risk first",
            answers.urgent_C[answers.truth_N] & ~called_N,
            risk_N,
        ),
        (
            "Most confident mistakes",
            "Most confident first",
            ~answers.right_N,
            -confidence_N,
        ),
    )
    strips = [
        (title, order, int(among_N.sum()), _first(answers, among_N, by_N))
        for title, order, among_N, by_N in wrong
    ]
    chosen = {place: records[place] for *_, places in strips for place in places}
    withheld = _withheld(dataset, list(chosen.values()), pictures)

    def one(place: int) -> Mistake:
        record, why = records[place], withheld.get(records[place].sha256, "")
        name = record.attribution.strip() or record.creator.strip()
        return Mistake(
            record.path,
            answers.classes[answers.truth_N[place]].name,
            answers.classes[answers.predicted_N[place]].name,
            float(confidence_N[place]),
            float(risk_N[place]),
            b"" if why else small_jpeg(np.asarray(read(record)), _SIDE),
            why,
            ", ".join(filter(None, (name, record.licence.strip()))),
        )

    return [
        MistakeStrip(title, order, count, tuple(map(one, places)))
        for title, order, count, places in strips
        if places
    ]


def _first(answers: Answers, among_N: NDArray[np.bool_], by_N: Floats) -> list[int]:
    """Return the places of the images with the least values, the first of each group."""
    places = np.flatnonzero(among_N)
    places = places[np.argsort(by_N[places], kind="stable")]
    _, first = np.unique(answers.groups_N[places], return_index=True)
    return [int(place) for place in places[np.sort(first)[:SHOWN]]]


def _withheld(dataset: Path, records: Sequence[Record], pictures: Pictures) -> dict[str, str]:
    if pictures == "none":
        return {record.sha256: "no pictures were asked for" for record in records}
    unnamed = {record.sha256 for record in records if not record.licence.strip()}
    return {
        sha256: reason.replace("-", " ")
        for sha256, (reason, _) in withheld_of(dataset, records).items()
        if not (pictures == "local" and reason == "licence-unknown" and sha256 in unnamed)
    }

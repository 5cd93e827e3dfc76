"""From cases to answers: photos of all cases go through the networks in one batch."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.answer import Answer, View
from skindx.diagnosis.case import Case
from skindx.diagnosis.opening import MAX_BYTES, Opened, open_photo, read_picture
from skindx.diagnosis.record import (
    Candidate,
    Diagnosis,
    LesionBox,
    Photo,
    Source,
    Vote,
    next_step,
)
from skindx.diagnosis.view import view_jpeg
from skindx.errors import UserError
from skindx.models.bundle import CARD, METRICS, Bundle
from skindx.models.combination import mutual_information
from skindx.models.prediction import Prediction
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

__all__ = [
    "MAX_BYTES",
    "answer",
    "answer_many",
    "bundle_version",
    "diagnose_pixels",
    "read_picture",
]

# P = photos of a case, C = classes, M = members

TOP = 5
_NO_DETECTOR = "The bundle has no lesion detector, so nothing is outlined."


def answer(predictor: "Predictor", case: Case) -> Answer:
    """Return the answer to a case.

    Raises Refused for a photo that cannot be judged, and UserError for a damaged bundle.
    """
    (answered,) = answer_many(predictor, [case])
    if isinstance(answered, UserError):
        raise answered
    return answered


def answer_many(predictor: "Predictor", cases: Sequence[Case]) -> list[Answer | UserError]:
    """Return each case's answer, or why it has none; the networks see all photos in one batch."""
    opened = [_open(case) for case in cases]
    sound = [photos for photos in opened if not isinstance(photos, UserError)]
    predictions = iter(predictor.predict([each.pixels_HWC for photos in sound for each in photos]))
    answers: list[Answer | UserError] = []
    for case, photos in zip(cases, opened, strict=True):
        if isinstance(photos, UserError):
            answers.append(photos)
            continue
        try:
            answers.append(_answer(predictor, case, photos, [next(predictions) for _ in photos]))
        except UserError as error:
            answers.append(error)
    return answers


def _open(case: Case) -> tuple[Opened, ...] | UserError:
    try:
        return tuple(open_photo(data, photo) for photo, data in enumerate(case.photos))
    except UserError as error:
        return error


def _answer(
    predictor: "Predictor", case: Case, photos: Sequence[Opened], predicted: Sequence[Prediction]
) -> Answer:
    diagnosis = _diagnosis(predictor, photos, predicted).model_copy(
        update={"patient": case.patient}
    )
    return Answer(diagnosis, tuple(View(view_jpeg(each.pixels_HWC)) for each in photos))


def diagnose_pixels(
    predictor: "Predictor", pixels_HWC: NDArray[np.uint8], sha256: str, top: int = TOP
) -> Diagnosis:
    """Return the diagnosis of a decoded picture (H x W x 3 RGB uint8).

    Raises UserError for `top` below 1, and for a bundle whose probabilities are no numbers.
    """
    height, width = pixels_HWC.shape[:2]
    photo = Opened(pixels_HWC, width, height, sha256)
    return _diagnosis(predictor, [photo], predictor.predict([pixels_HWC]), top)


def _diagnosis(
    predictor: "Predictor",
    photos: Sequence[Opened],
    predicted: Sequence[Prediction],
    top: int = TOP,
) -> Diagnosis:
    if top < 1:
        raise UserError(f"top {top} shows nothing; ask for at least 1 class.")
    probabilities_C = np.mean([each.probabilities_C for each in predicted], axis=0)
    members_MC = np.mean([each.member_probabilities_MC for each in predicted], axis=0)
    if not (np.isfinite(probabilities_C).all() and np.isfinite(members_MC).all()):
        raise UserError(
            f"bundle {predictor.bundle.path} gives no probabilities for this picture; its weights "
            "are damaged, train and pack it again."
        )
    classes = predictor.taxonomy.classes
    order = np.argsort(-probabilities_C, kind="stable")
    ranked = [(classes[i], float(probabilities_C[i])) for i in order]
    return Diagnosis(
        next_step=next_step(ranked),
        candidates=tuple(
            Candidate(
                key=each.key,
                name=each.name,
                icd10=each.icd10,
                probability=min(probability, 1.0),  # a mean may exceed it by a rounding
                description=each.description,
                urgency=each.urgency,
            )
            for each, probability in ranked[:top]
        ),
        disagreement=float(mutual_information(members_MC[:, None], predictor.weights)[0]),
        votes=_votes(predictor.members, members_MC, predictor.taxonomy),
        photos=tuple(
            Photo(
                width=photo.width,
                height=photo.height,
                sha256=photo.sha256,
                boxes=_boxes(prediction, photo),
                no_boxes="" if predictor.has_detector else predictor.missing or _NO_DETECTOR,
            )
            for photo, prediction in zip(photos, predicted, strict=True)
        ),
        source=_source(predictor.bundle),
    )


def bundle_version(bundle: Bundle) -> str:
    """Return a SHA-256 over everything that decides an answer: weights, settings, taxonomy."""
    files = {
        name: hash_ for name, hash_ in bundle.spec.files.items() if name not in (METRICS, CARD)
    }
    deciding = bundle.spec.model_copy(update={"files": files})
    return hashlib.sha256(deciding.model_dump_json().encode()).hexdigest()


def _votes(
    members: tuple[str, ...], members_MC: NDArray[np.float64], taxonomy: Taxonomy
) -> tuple[Vote, ...]:
    return tuple(
        Vote(member=name, key=taxonomy.keys[row_C.argmax()], probability=min(float(row_C.max()), 1))
        for name, row_C in zip(members, members_MC, strict=True)
    )


def _boxes(prediction: Prediction, photo: Opened) -> tuple[LesionBox, ...] | None:
    """Return the boxes in pixels of the photo at full scale."""
    if prediction.boxes is None:
        return None
    height, width = photo.pixels_HWC.shape[:2]
    across, down = photo.width / width, photo.height / height
    return tuple(
        LesionBox(
            x1=box.x1 * across,
            y1=box.y1 * down,
            x2=box.x2 * across,
            y2=box.y2 * down,
            label=box.label,
            score=box.score or 0.0,
        )
        for box in prediction.boxes
    )


def _source(bundle: Bundle) -> Source:
    temperatures = (bundle.spec.temperature, *(each.temperature for each in bundle.spec.members))
    return Source(
        name=bundle.spec.name,
        created=bundle.spec.created,
        version=bundle_version(bundle),
        calibrated=any(each != 1 for each in temperatures),
        taxonomy=bundle.taxonomy.title,
        review=bundle.taxonomy.review_note,
    )

"""From the bytes of a picture to a diagnosis; whatever is wrong with them is told in a sentence."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.data.screening.decode import DamagedPicture, decode
from skindx.data.screening.magic import picture_suffix
from skindx.diagnosis.record import (
    Candidate,
    Diagnosis,
    LesionBox,
    Photo,
    Source,
    Vote,
    next_step,
)
from skindx.errors import UserError
from skindx.models.bundle import CARD, METRICS, Bundle
from skindx.models.combination import mutual_information
from skindx.models.exports.spec import EXPORTS
from skindx.models.prediction import Prediction
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

MAX_BYTES = 20 * 1024 * 1024
MIN_SIDE = 32
MAX_RATIO = 10

_NO_DETECTOR = "The bundle has no lesion detector, so nothing is outlined."


def diagnose_bytes(predictor: "Predictor", data: bytes, top: int = 5) -> Diagnosis:
    """Return the `top` most probable classes of a picture file's bytes, and what goes with them.

    Raises UserError for bytes that are no whole picture, too many bytes or pixels, and a shape
    that no photo has.
    """
    return diagnose_pixels(predictor, open_picture(data), hashlib.sha256(data).hexdigest(), top)


def diagnose_file(predictor: "Predictor", path: Path, top: int = 5) -> Diagnosis:
    """Return the diagnosis of a picture on disk. Raises UserError as `diagnose_bytes` does."""
    return diagnose_bytes(predictor, read_picture(path), top)


def read_picture(path: Path) -> bytes:
    """Read a picture file, never more than the limit. Raises UserError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"picture {path} does not exist; check the path.") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"picture {path} cannot be read ({reason}); give a file.") from None


def open_picture(data: bytes) -> NDArray[np.uint8]:
    """Decode and check a picture; return pixels_HWC, upright. Raises UserError."""
    if not data:
        raise UserError("the file is empty; choose a JPEG, PNG or WebP photo.")
    if len(data) > MAX_BYTES:
        raise UserError(
            f"the file has more than {MAX_BYTES >> 20} MB; save the photo smaller and try again."
        )
    if picture_suffix(data[:16]) is None:
        raise UserError(
            "the file is no picture that can be read here, whatever its name says; "
            "choose a JPEG, PNG or WebP photo (save HEIC as JPEG first)."
        )
    try:
        pixels_HWC = decode(data)
    except DamagedPicture as error:
        # A third-party decoder's own words (`error` has a cause then) tell a user nothing.
        reason = str(error) if error.__cause__ is None else "it is damaged or cut short"
        raise UserError(
            f"the picture cannot be read ({reason}); take it again or export it anew as JPEG."
        ) from None
    height, width = pixels_HWC.shape[:2]
    if min(height, width) < MIN_SIDE or max(height, width) > MAX_RATIO * min(height, width):
        raise UserError(
            f"the picture measures {width} x {height} pixels; choose one of at least "
            f"{MIN_SIDE} on each side and at most {MAX_RATIO} times longer than wide."
        )
    return pixels_HWC


def diagnose_pixels(
    predictor: "Predictor", pixels_HWC: NDArray[np.uint8], sha256: str, top: int = 5
) -> Diagnosis:
    """Return the diagnosis of a decoded picture (H x W x 3 RGB uint8).

    Raises UserError for `top` below 1, and for a bundle whose probabilities are no numbers.
    """
    if top < 1:
        raise UserError(f"top {top} shows nothing; ask for at least 1 class.")
    (prediction,) = predictor.predict([pixels_HWC])
    members_MC = prediction.member_probabilities_MC
    if not (np.isfinite(prediction.probabilities_C).all() and np.isfinite(members_MC).all()):
        raise UserError(
            f"bundle {predictor.bundle.path} gives no probabilities for this picture; its weights "
            "are damaged, train and pack it again."
        )
    height, width = pixels_HWC.shape[:2]
    classes, probabilities_C = predictor.taxonomy.classes, prediction.probabilities_C
    order = np.argsort(-probabilities_C, kind="stable")
    ranked = [(classes[i], float(probabilities_C[i])) for i in order]
    return Diagnosis(
        next_step=next_step(ranked),
        candidates=tuple(
            Candidate(
                key=each.key,
                name=each.name,
                icd10=each.icd10,
                probability=probability,
                description=each.description,
                urgency=each.urgency,
            )
            for each, probability in ranked[:top]
        ),
        disagreement=float(mutual_information(members_MC[:, None], predictor.weights)[0]),
        votes=_votes(predictor.members, members_MC, predictor.taxonomy),
        photos=(
            Photo(
                width=width,
                height=height,
                sha256=sha256,
                boxes=_boxes(prediction),
                no_boxes="" if predictor.has_detector else predictor.missing or _NO_DETECTOR,
            ),
        ),
        source=_source(predictor),
    )


def bundle_version(bundle: Bundle) -> str:
    """Return a SHA-256 over everything that decides an answer: weights, settings, taxonomy.

    Exports are the same weights again, checked to answer alike; a record names its backend.
    """
    files = {
        name: hash_
        for name, hash_ in bundle.spec.files.items()
        if name not in (METRICS, CARD) and not name.startswith(f"{EXPORTS}/")
    }
    deciding = bundle.spec.model_copy(update={"files": files})
    return hashlib.sha256(deciding.model_dump_json().encode()).hexdigest()


def _votes(
    members: tuple[str, ...], members_MC: NDArray[np.float64], taxonomy: Taxonomy
) -> tuple[Vote, ...]:
    return tuple(
        Vote(member=name, key=taxonomy.keys[row_C.argmax()], probability=float(row_C.max()))
        for name, row_C in zip(members, members_MC, strict=True)
    )


def _boxes(prediction: Prediction) -> tuple[LesionBox, ...] | None:
    if prediction.boxes is None:
        return None
    return tuple(
        LesionBox(
            x1=box.x1, y1=box.y1, x2=box.x2, y2=box.y2, label=box.label, score=box.score or 0.0
        )
        for box in prediction.boxes
    )


def _source(predictor: "Predictor") -> Source:
    bundle = predictor.bundle
    temperatures = (bundle.spec.temperature, *(each.temperature for each in bundle.spec.members))
    return Source(
        name=bundle.spec.name,
        created=bundle.spec.created,
        version=bundle_version(bundle),
        backend=predictor.backend,
        calibrated=any(each != 1 for each in temperatures),
        taxonomy=bundle.taxonomy.title,
        review=bundle.taxonomy.review_note,
    )

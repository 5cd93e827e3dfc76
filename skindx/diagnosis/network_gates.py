"""The gates after the networks: photos unlike the training images, or of the other modality.

They also say what the networks saw of each photo: the detector's boxes, the part that classifiers
look at, a lesion that this part cuts, and whether the photo is a wide one, for a scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.diagnosis.photo_checks import CheckedCase, CheckedPhoto, Gate, Refusal, small_view
from skindx.diagnosis.record import LesionBox, Photo
from skindx.imaging.cut_lesions import Cut, cut_by
from skindx.imaging.photo_gates import Kind, ModalityCheck
from skindx.metrics.classification import Rectangle
from skindx.texts.catalogue import joined, text

if TYPE_CHECKING:
    from skindx.models.classifier.preprocess import Preprocess
    from skindx.models.ensemble import Prediction
    from skindx.models.ood.ood_check import OodCheck

# P = photos of a case

_OTHER_MODALITY: dict[Kind, tuple[str, str]] = {
    "dermoscopic": ("refused_not_dermoscopic", "refused_not_dermoscopic_do"),
    "clinical": ("refused_not_clinical", "refused_not_clinical_do"),
}
_SAID_OTHER: dict[Kind, str] = {
    "dermoscopic": "refused_take_dermoscopic",
    "clinical": "refused_not_clinical_do",
}


class WideRule(Settings):
    """When a photo that came for a diagnosis is offered a scan."""

    least_lesions: int = Field(3, ge=1, le=10**6)
    """So many small lesions make a photo wide: a close-up may show a mole beside the lesion that
    it is of, and a person with one lesion needs no ranking."""
    largest_share: float = Field(0.125, gt=0, le=1)
    """A lesion is small whose longer side is at most this share of the photo's shorter side. In a
    close-up the lesion takes a third and more, as in the images that classifiers are trained on;
    at an eighth, with the networks' margin around it, less than a fiftieth of what they see is
    lesion."""

    def small_lesions(self, width: int, height: int, boxes: Sequence[Rectangle]) -> int:
        """Return how many small lesions a wide photo shows; 0: it is not wide.

        `boxes` are of the detector, the highest score first. A photo whose best box is large is of
        that lesion, whatever else is on it.
        """
        most = self.largest_share * min(width, height)
        small = [max(box.x2 - box.x1, box.y2 - box.y1) <= most for box in boxes]
        return sum(small) if sum(small) >= self.least_lesions and small[0] else 0

    def wide(self, photos: Mapping[int, Photo]) -> dict[int, int]:
        """Return which photos of a case are wide, and how many small lesions each shows."""
        counts = {
            place: self.small_lesions(photo.width, photo.height, photo.boxes or ())
            for place, photo in photos.items()
        }
        return {place: count for place, count in counts.items() if count}


@dataclass(frozen=True)
class NetworkGates:
    """What a bundle compares a photo with that its networks have seen."""

    ood: "OodCheck | None"
    modality: ModalityCheck | None
    frame: "Preprocess"
    """The frame of the member that sees most of a photo."""
    no_boxes: str
    """Why there are no boxes, in a sentence; empty where a detector looks for them."""
    refused_urgent: str = ""
    """How many urgent images these gates and others refused, in a sentence; "" if unknown."""


@dataclass(frozen=True)
class GatedCase:
    """What the networks saw of a case's photos; a case with refusals gets no answer."""

    photos: tuple[Photo, ...]
    refused: tuple[Refusal, ...] = ()
    """Refused by these gates or by those before the networks."""
    said: tuple[int, ...] = ()
    """Photos, from 0, that pass the check of modality because a person says how they were taken."""


def gate_case(
    gates: NetworkGates,
    checked: CheckedCase,
    predictions: "Sequence[Prediction]",
    p_values_P: NDArray[np.float64] | None,
) -> GatedCase:
    """Return what was seen of the photos that passed the gates of quality, or which are refused."""
    passed = checked.passed
    modality = checked.case.modality
    unlike, other = _unlike(gates, passed, p_values_P), _of_other_modality(gates, passed, modality)
    said = other if gates.modality and modality == gates.modality.kind else set()
    why = _refused_by(gates, unlike, other - said, modality)
    if not why and not checked.refused:
        photos = zip(passed.values(), predictions, strict=True)
        seen_whole = tuple(_seen_whole(gates, *photo) for photo in photos)
        return GatedCase(seen_whole, said=tuple(sorted(said)))
    seen = {
        n: photo_of(gates, photo, prediction)
        for (n, photo), prediction in zip(passed.items(), predictions, strict=True)
    }
    refused = list(checked.refused)
    for n, (gate, sentences, unless) in why.items():
        count = WideRule().wide({n: seen[n]}).get(n)
        scan = [text("refused_afar", count=count), text("refused_afar_do")] if count else []
        shown = small_view(checked.case.photos[n], passed[n].decoded.pixels_HWC)
        refused.append(Refusal(n, gate, joined(*sentences, *scan), shown, seen[n], unless))
    return GatedCase(tuple(seen.values()), tuple(refused))


def _unlike(
    gates: NetworkGates,
    photos: Mapping[int, CheckedPhoto],
    p_values_P: NDArray[np.float64] | None,
) -> set[int]:
    """Return the photos that are too unlike the training images."""
    if gates.ood is None or p_values_P is None:
        return set()
    values = zip(photos, p_values_P, strict=True)
    return {n for n, p_value in values if gates.ood.is_out(float(p_value))}


def _of_other_modality(
    gates: NetworkGates, photos: Mapping[int, CheckedPhoto], said: str
) -> set[int]:
    """Return the photos that the check takes for the other modality, or that a person calls so."""
    check = gates.modality
    if check is None:
        return set()
    other = said not in ("", check.kind)
    return {n for n, one in photos.items() if other or check.refuses(one.decoded.pixels_HWC)}


def _refused_by(
    gates: NetworkGates, unlike: set[int], other: set[int], said: str
) -> dict[int, tuple[Gate, list[str], Kind | Literal[""]]]:
    """Return which gate refuses which photos, why, and what a person may say of each.

    Where both refuse a photo the modality comes first: another photo like it would not help.
    """
    why: dict[int, tuple[Gate, list[str], Kind | Literal[""]]] = {}
    for n in sorted(unlike | other):
        if n not in other:
            do = text("refused_unlike_do")
            why[n] = "unfamiliar", [text("refused_unlike"), do, gates.refused_urgent], ""
            continue
        assert gates.modality
        kind = gates.modality.kind
        message, do = (text(key) for key in _OTHER_MODALITY[kind])
        if said:
            why[n] = "modality", [text(_SAID_OTHER[kind])], ""
        elif n in unlike:
            also = text("refused_unlike_too")
            why[n] = "modality", [message, also, gates.refused_urgent, do], ""
        else:
            why[n] = "modality", [message, do, gates.refused_urgent], kind
    return why


def _seen_whole(gates: NetworkGates, seen: CheckedPhoto, prediction: "Prediction") -> Photo:
    """Return a photo with the remark that the networks saw a part of its lesion, if they did."""
    photo = photo_of(gates, seen, prediction)
    width, height = photo.width, photo.height
    assert photo.square
    square, *boxes = (
        (left / width, top / height, right / width, bottom / height)
        for left, top, right, bottom in (
            photo.square,
            *((box.x1, box.y1, box.x2, box.y2) for box in photo.boxes or ()),
        )
    )
    return cut_photo(photo, cut_by(seen.decoded.pixels_HWC, square, boxes))


def cut_photo(photo: Photo, cut: Cut) -> Photo:
    """Return a photo with the remark on what cuts its lesion; "" changes nothing."""
    if not cut:
        return photo
    return photo.model_copy(update={"cut_by": cut, "remarks": (cut_text(cut), *photo.remarks)})


def cut_text(cut: Cut) -> str:
    """Return the remark on a photo of whose lesion the networks saw a part."""
    if cut == "square":
        return joined(text("cut_square"), text("cut_square_again"))
    return joined(text("cut_edge"), text("cut_edge_again"))


def photo_of(gates: NetworkGates, seen: CheckedPhoto, prediction: "Prediction") -> Photo:
    """Return the record of a photo, before it is known whether its lesion is cut."""
    decoded = seen.decoded
    top, left, side = gates.frame.square_of(decoded.height, decoded.width)
    right, bottom = min(left + side, decoded.width), min(top + side, decoded.height)
    return Photo(
        width=decoded.width,
        height=decoded.height,
        sha256=decoded.sha256,
        boxes=_boxes(prediction, seen),
        no_boxes=gates.no_boxes,
        square=(max(left, 0), max(top, 0), right, bottom),
        remarks=seen.remarks,
        colours=tuple(sorted(decoded.notes)),
        mm_per_pixel=decoded.facts.mm_per_pixel if decoded.facts else None,
        taken=decoded.taken,
    )


def _boxes(prediction: "Prediction", seen: CheckedPhoto) -> tuple[LesionBox, ...] | None:
    """Return the boxes in pixels of the photo at full scale."""
    if prediction.boxes is None:
        return None
    height, width = seen.decoded.pixels_HWC.shape[:2]
    across, down = seen.decoded.width / width, seen.decoded.height / height
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

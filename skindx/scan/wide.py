"""Which photo is a wide one: it shows several lesions, each small against it."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Photo
from skindx.metrics.detection import Rectangle


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


def seen_of_refused(error: Refused) -> dict[int, Photo]:
    """Return the photos that the networks saw and refused, by their place in the case.

    A wide photo is often unlike the close-ups that classifiers are trained on.
    """
    return {refusal.photo: refusal.seen for refusal in error.refusals if refusal.seen}

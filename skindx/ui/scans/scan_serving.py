"""Which photos are offered a scan, whether a server can scan, and how many scans it keeps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install, missing_modules
from skindx.core.settings_base import Settings
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Photo
from skindx.metrics.detection import Rectangle

if TYPE_CHECKING:
    from skindx.models.bundle.bundle import Bundle


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


class ScanRefused(UserError):  # noqa: N818
    """Too many scans, of this client (429) or in all (503)."""

    def __init__(self, status: int, sentence: str, retry_after_s: int) -> None:
        super().__init__(f"{sentence} try again in {retry_after_s} seconds.")
        self.status, self.retry_after_s = status, retry_after_s


class NoScans(UserError):  # noqa: N818
    """This server cannot scan: 501 without the packages, 409 with a bundle without a detector."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


_EXTRAS = {"scan": ("pyvips", "sqlalchemy", "zarr"), "detect": ("ultralytics",)}


def why_no_scans(bundle: "Bundle") -> NoScans | None:
    """Return why a server of this bundle cannot scan; None: it can."""
    if bundle.spec.detector is None:
        return NoScans(
            409,
            "the bundle of this server has no detector, so it cannot find lesions on a wide photo; "
            "ask for a diagnosis of a photo of each lesion.",
        )
    for extra, modules in _EXTRAS.items():
        if missing := missing_modules(*modules):
            return NoScans(
                501,
                f"this server cannot scan, because {', '.join(missing)} is not installed; its "
                f"operator can run {how_to_install(extra)}.",
            )
    return None


class ScanServing(Settings):
    """What the server's scans may take."""

    keep_s: float = Field(1800.0, gt=0, le=1e6)
    """A result is deleted so many seconds after the scan ended: long enough to read it and to
    download it, and no longer, since it shows a person's skin."""
    waiting: int = Field(4, ge=1, le=64)
    """Most scans that wait, beside the one at work; one more is refused."""
    per_client: int = Field(2, ge=1, le=64)
    """Most scans of one client that wait or are at work."""
    kept: int = Field(32, ge=1, le=10**6)
    """Most results that are kept at a time; a further one takes the place of the oldest."""
    kept_per_client: int = Field(8, ge=1, le=10**6)
    """Of them, most of one client; a further one takes the place of that client's oldest."""
    workers: int = Field(1, ge=1, le=64)
    """Processes that search: each holds the bundle, and diagnoses must not wait for a scan."""
    longest_s: float = Field(1800.0, gt=0, le=1e6)
    """A scan that takes longer is ended."""
    wide: WideRule = Field(default_factory=WideRule)
    """Which photos of a diagnosis the page offers a scan."""
    most_megapixels: int = Field(200, ge=1, le=2000)
    """Of one photo: its pixels lie on the disk, 4 bytes each, while it is scanned."""

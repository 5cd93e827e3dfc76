"""Two folders of scans become the list of what changed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skindx.core.errors import UserError
from skindx.scan.compare.changes import Change, Kind, changes
from skindx.scan.compare.matching import match
from skindx.scan.compare.registration import Registration, register
from skindx.scan.compare.view import Scan, View, read_scan


@dataclass(frozen=True)
class ComparedPhoto:
    """A photo after with the photo before that shows the same view."""

    before: View
    after: View
    registration: Registration
    changes: tuple[Change, ...]

    @property
    def error_px(self) -> float:
        """How well places are found again: standard deviation, pixels of the photo after."""
        shrunk = self.after.pixels_HW3.shape[1] / self.after.photo.width
        return float(self.registration.warp.error_px / shrunk)

    @property
    def error_mm(self) -> float | None:
        """Return the same in millimetres; None without a scale."""
        scale = self.after.photo.mm_per_pixel
        return None if scale is None else self.error_px * scale


@dataclass(frozen=True)
class ScanComparison:
    """All photos of two scans."""

    before: Scan
    after: Scan
    photos: tuple[ComparedPhoto, ...]
    alone: tuple[str, ...]
    """Photos after that no photo before fits."""

    def count(self, kind: Kind) -> int:
        """Return how many lesions are of a kind."""
        return sum(change.kind == kind for photo in self.photos for change in photo.changes)


def compare(before: Path, after: Path) -> ScanComparison:
    """Compare the scans in two folders.

    Every photo after is compared with the photo before that fits it best. Raises UserError for a
    folder without a scan, and where no photo fits another.
    """
    scans = read_scan(before), read_scan(after)
    found, alone, refusals = [], [], []
    for view in scans[1].views:
        fitting = []
        for other in sorted(scans[0].views, key=lambda one: one.photo.name != view.photo.name):
            try:
                fitting.append((register(other, view), other))
            except UserError as refusal:
                refusals.append(refusal)
                continue
            if other.photo.name == view.photo.name:
                break
        if not fitting:
            alone.append(view.photo.name)
            continue
        registration, other = max(fitting, key=lambda one: (not one[0].by_lesions, one[0].points))
        matched = match(other, view, registration)
        found.append(
            ComparedPhoto(other, view, matched.registration, changes(other, view, matched))
        )
    if found:
        return ScanComparison(*scans, tuple(found), tuple(alone))
    if len(refusals) == 1:
        raise refusals[0]
    raise UserError(
        f"no photo of {after} can be laid on one of {before}: they show different people, other "
        f"parts of the body, or were taken from very different sides."
    )


def square_around(
    view: View, place: tuple[float, float], side: float
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None":
    """Return the pixels of a square around a place; None: less than half of it is in the photo."""
    width, height = view.size_wh
    x1, y1 = round(place[0] - side / 2), round(place[1] - side / 2)
    x2, y2 = x1 + max(round(side), 8), y1 + max(round(side), 8)
    inside = np.clip([x1, x2], 0, width), np.clip([y1, y2], 0, height)
    area = float(np.diff(inside[0])[0] * np.diff(inside[1])[0])
    if area < 0.5 * (x2 - x1) * (y2 - y1):
        return None
    cut = view.pixels_HW3[inside[1][0] : inside[1][1], inside[0][0] : inside[0][1]]
    around = [
        (int(inside[1][0]) - y1, y2 - int(inside[1][1])),
        (int(inside[0][0]) - x1, x2 - int(inside[0][1])),
        (0, 0),
    ]
    return np.pad(cut, around, "edge")

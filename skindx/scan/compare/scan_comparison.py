"""Two folders of scans become the list of what changed: one HTML page without a script, and CSV."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import FolderKind
from skindx.core.errors import UserError
from skindx.core.private_files import private_output, write_private, write_private_csv
from skindx.core.text import counted, csp_hash, html_environment, inlined, keep_units, printable
from skindx.data.tables.cells import no_formula
from skindx.imaging.resize import small_jpeg
from skindx.scan.compare.changes import KINDS, Kind, LesionChange, changes, match
from skindx.scan.compare.registration import Registration, ScanView, StoredScan, read_scan, register
from skindx.scan.outputs.scan_result import Summary, shown_risk
from skindx.texts.catalogue import joined, percent, text


@dataclass(frozen=True)
class ComparedPhoto:
    """A photo after with the photo before that shows the same view."""

    before: ScanView
    after: ScanView
    registration: Registration
    changes: tuple[LesionChange, ...]

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

    before: StoredScan
    after: StoredScan
    photos: tuple[ComparedPhoto, ...]
    alone: tuple[str, ...]
    """Photos after that no photo before fits."""

    def count(self, kind: Kind) -> int:
        return sum(change.kind == kind for photo in self.photos for change in photo.changes)


def compare(before: Path, after: Path) -> ScanComparison:
    """Compare the scans in two folders.

    Every photo after is compared with the photo before that fits it best. Raises UserError for a
    folder without a scan, and where no photo fits another.
    """
    scans = read_scan(before), read_scan(after)
    compared, alone, refusals = [], [], []
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
        compared.append(
            ComparedPhoto(other, view, matched.registration, changes(other, view, matched))
        )
    if compared:
        return ScanComparison(*scans, tuple(compared), tuple(alone))
    if len(refusals) == 1:
        raise refusals[0]
    raise UserError(
        f"no photo of {after} shows the same person, body part and side as a photo of {before}; "
        "take the photos again in the same way as the first time."
    )


def square_around(
    view: ScanView, place: tuple[float, float], side: float
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


COLUMNS = (
    "photo_before", "photo_after", "kind", "reasons", "rank_before", "rank_after", "x_before",
    "y_before", "x_after", "y_after", "growth", "growth_low", "growth_high", "p_value",
    "colour_change", "urgent_risk_before", "urgent_risk_after",
    "not_known",
)  # fmt: skip


def change_rows(comparison: ScanComparison) -> list[list[object]]:
    """Return a row for each lesion of either scan; places are in pixels of the photos."""
    rows = []
    for photo in comparison.photos:
        shrunk = [view.size_wh[0] / view.photo.width for view in (photo.before, photo.after)]
        for change in photo.changes:
            growth, row, after = change.growth, change.before, change.after
            line: list[object] = [
                no_formula(printable(photo.before.photo.name)),
                no_formula(printable(photo.after.photo.name)),
                change.kind,
                "; ".join(change.reasons),
                row and row["rank"],
                after and after["rank"],
                *(round(value / shrunk[0], 1) for value in change.place_before),
                *(round(value / shrunk[1], 1) for value in change.place_after),
                *(
                    (round(value, 4) for value in (growth.value, growth.low, growth.high))
                    if growth
                    else (None,) * 3
                ),
                change.p_value,
                change.colour_change,
                row and row["urgent_risk"],
                after and after["urgent_risk"],
                comparison.after.summary.scope.text,
            ]
            rows.append(line)
    return rows


PAGE, TABLE = "comparison.html", "changes.csv"
COMPARISON = FolderKind("a comparison of scans", TABLE, (PAGE,))
_OVERVIEW_PX, _CROP_PX = 1200, 200
_MARGIN = 2.4
"""Side of a crop, in diameters."""
_LABELS_ACROSS = 32
_MEANING: dict[Kind, tuple[str, str]] = {
    "new": ("New", "Outlined after and not before, though the photo before shows the place."),
    "grown": ("Grown", "The diameter grew by more than outlines differ by."),
    "changed": ("Changed otherwise", "Smaller, of another colour, or now of urgent risk."),
    "vanished": ("Vanished", "Outlined before and not after, though the photo after shows it."),
}


def write_comparison(folder: Path, comparison: ScanComparison) -> None:
    """Write page and table into a folder, whole or not at all; an older comparison is replaced."""
    with private_output(folder, COMPARISON) as new:
        write_private_csv(new / TABLE, COLUMNS, change_rows(comparison))
        write_private(new / PAGE, render_comparison(comparison))


def headline(comparison: ScanComparison) -> str:
    return ", ".join(f"{comparison.count(kind)} {kind}" for kind in KINDS[:4])


def render_comparison(comparison: ScanComparison) -> str:
    """Return the page as HTML that is well-formed XML too."""
    style = inlined(__package__, "comparison.css")
    html = html_environment("skindx.scan.compare").get_template(
        "comparison.html.jinja"
    ).render(
        title=f"Compared scans: {headline(comparison)}",
        notice=joined(text("unchanged_dangerous"), text("cannot_rule_out")),
        before_when=_when(comparison.before.summary),
        after_when=_when(comparison.after.summary),
        remarks=_remarks(comparison),
        known=comparison.after.summary.scope.text,
        photos=[_photo(photo, comparison) for photo in comparison.photos],
        style=style,
        style_hash=csp_hash(style),
    )  # fmt: skip
    return keep_units(html)


def _when(summary: Summary) -> str:
    return f"scan of {summary.made_at:%d %B %Y, %H:%M} with {counted(summary.lesions, 'lesion')}"


def _remarks(comparison: ScanComparison) -> list[str]:
    remarks = [
        f"{printable(name)} fits no photo of the scan before, so its lesions were not compared."
        for name in comparison.alone
    ]
    later = comparison.after.summary
    remarks += filter(None, (later.no_urgent_risk, later.scope.learned_from, later.scope.warning))
    sources = comparison.before.summary.source, comparison.after.summary.source
    if sources[0].version != sources[1].version:
        remarks.append(
            "The two scans were made with different bundles: lesions may be new or vanished "
            "because another detector looked for them."
        )
    remarks += [
        f"{printable(photo.after.photo.name)} was laid on the photo before by its lesions alone, "
        f"since the skin shows nothing else in common: lesions that are new or vanished are less "
        f"certain."
        for photo in comparison.photos
        if photo.registration.by_lesions
    ]
    return remarks


def _photo(photo: ComparedPhoto, comparison: ScanComparison) -> dict[str, Any]:
    marked = [change for change in photo.changes if change.kind in _MEANING]
    numbers = {id(change): number for number, change in enumerate(marked, 1)}
    before, after = photo.before, photo.after
    rest = [change for change in photo.changes if change.kind not in _MEANING]
    millimetres = f", {photo.error_mm:.1f} mm" if photo.error_mm is not None else ""
    shared = "lesions" if photo.registration.by_lesions else "points of the skin"
    return {
        "name": printable(after.photo.name),
        "basis": (
            f"Laid on {printable(before.photo.name)} by {photo.registration.points} {shared}; a "
            f"place is found again to ± {photo.error_px:.1f} pixels{millimetres} (standard "
            f"deviation)."
        ),
        "views": [
            _view("Before", before, marked, numbers, first=True),
            _view("After", after, marked, numbers, first=False),
        ],
        "groups": [
            {
                "title": title,
                "meaning": meaning,
                "cards": [
                    _card(numbers[id(change)], change, photo, comparison)
                    for change in marked
                    if change.kind == kind
                ],
            }
            for kind, (title, meaning) in _MEANING.items()
            if any(change.kind == kind for change in marked)
        ],
        "rest": [_cells(change) for change in rest],
        "rest_title": (
            f"{counted(len(rest), 'lesion')} without a clear change, or seen in one photo only"
        ),
    }


def _view(
    title: str,
    view: ScanView,
    marked: Sequence[LesionChange],
    numbers: dict[int, int],
    *,
    first: bool,
) -> dict[str, Any]:
    width, height = view.size_wh
    label = max(width, height) / _LABELS_ACROSS
    marks = []
    for change in marked:
        place = change.place_before if first else change.place_after
        side = max(1.6 * (change.size_before if first else change.size_after), 0.7 * label)
        x, y = place[0] - side / 2, place[1] - side / 2
        marks.append(
            {
                "kind": change.kind,
                "number": numbers[id(change)],
                "x": round(x, 1),
                "y": round(y, 1),
                "side": round(side, 1),
                "text_y": round(max(y - 0.3 * label, label), 1),
            }
        )
    jpeg = small_jpeg(view.pixels_HW3, _OVERVIEW_PX)
    return {
        "title": f"{title}: {printable(view.photo.name)}",
        "width": width,
        "height": height,
        "label": round(label, 1),
        "jpeg": b64encode(jpeg).decode(),
        "marks": marks,
    }


def _card(
    number: int, change: LesionChange, photo: ComparedPhoto, comparison: ScanComparison
) -> dict[str, Any]:
    # Both crops show as much skin: a lesion that grew looks larger.
    scale = float(photo.registration.warp.scales(np.array([change.place_before]))[0])
    size = max(change.size_before, change.size_after / scale)
    crops = [
        _crop("before", number, photo.before, change.place_before, size),
        _crop("after", number, photo.after, change.place_after, size * scale),
    ]
    for crop, row in zip(crops, (change.before, change.after), strict=True):
        crop["caption"] += f", rank {row['rank']}" if row else ", not outlined"
    return {"number": number, "crops": crops, "text": _text(change, comparison)}


def _crop(
    when: str, number: int, view: ScanView, place: tuple[float, float], size: float
) -> dict[str, Any]:
    pixels_HW3 = square_around(view, place, _MARGIN * size)
    jpeg = "" if pixels_HW3 is None else b64encode(small_jpeg(pixels_HW3, _CROP_PX)).decode()
    return {"jpeg": jpeg, "alt": f"Lesion {number} {when}", "caption": when}


def _text(change: LesionChange, comparison: ScanComparison) -> str:
    words = []
    if change.growth:
        low, high = change.growth.low, change.growth.high
        words.append(f"Diameter × {change.growth.value:.2f} ({low:.2f} to {high:.2f})")
    if change.reasons:
        words.append(", ".join(change.reasons))
    risks = [
        shown_risk(row["urgent_risk"]) for row in (change.before, change.after) if row is not None
    ]
    words.append("urgent risk " + " → ".join(risks))
    if change.kind in ("new", "vanished"):
        words.append(_missing(change, comparison))
    return "; ".join(word for word in words if word) + "."


def _missing(change: LesionChange, comparison: ScanComparison) -> str:
    """Return how often the detector misses such a lesion in the scan that does not have it."""
    row = change.after or change.before
    assert row is not None
    other = comparison.before if change.kind == "new" else comparison.after
    size = ((row["x2"] - row["x1"]) * (row["y2"] - row["y1"])) ** 0.5
    measured = other.summary.recall if other.summary.measured_on.holds_for_photos else None
    for band in measured or ():
        if band.lesions and band.holds(size):
            return f"the detector misses {percent(1 - band.recall.value)} of this size"
    return "how often the detector misses this size is unknown"


def _cells(change: LesionChange) -> list[str]:
    row, after, growth = change.before, change.after, change.growth
    colour = change.colour_change
    return [
        str(row["rank"]) if row else "–",
        str(after["rank"]) if after else "–",
        f"{growth.value:.2f} ({growth.low:.2f} to {growth.high:.2f})" if growth else "–",
        "–" if colour is None else f"{colour:.1f}",
        "; ".join((change.kind, *change.reasons)),
    ]

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
from skindx.core.text import csp_hash, html_environment, inlined, keep_units, printable
from skindx.data.tables.cells import no_formula
from skindx.diagnosis.record import unreviewed
from skindx.imaging.resize import small_jpeg
from skindx.scan.compare.changes import Kind, LesionChange, changes, match
from skindx.scan.compare.registration import Registration, ScanView, StoredScan, read_scan, register
from skindx.scan.outputs.scan_result import shown_risk
from skindx.texts.catalogue import joined, spoken, text, word


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
    raise UserError(joined(text("compared_none_fits"), text("compared_none_fits_do")))


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
    "new": ("compared_new", "compared_new_means"),
    "grown": ("compared_grown", "compared_grown_means"),
    "changed": ("compared_changed", "compared_changed_means"),
    "vanished": ("compared_vanished", "compared_vanished_means"),
}
"""The keys of a kind's title and meaning."""
REASONS: dict[str, str] = {
    "smaller": "compared_smaller",
    "colour": "compared_colour",
    "its urgent risk now reaches the threshold": "compared_now_urgent",
    "the photo after does not show its place": "compared_not_after",
    "the photo before does not show its place": "compared_not_before",
}
"""The key of each reason, which the table has in English."""


def write_comparison(folder: Path, comparison: ScanComparison) -> None:
    """Write page and table into a folder, whole or not at all; an older comparison is replaced."""
    with private_output(folder, COMPARISON) as new:
        write_private_csv(new / TABLE, COLUMNS, change_rows(comparison))
        write_private(new / PAGE, render_comparison(comparison))


def summary(comparison: ScanComparison, folder: Path) -> str:
    """Return what a terminal shows of a comparison in a folder."""
    counts = text("compared_counts", **_counts(comparison))
    page = text("compared_page", file=str(folder / PAGE))
    seen = text("compared_change_seen")
    return "\n".join((seen, counts, *_not_compared(comparison), page))


def _counts(comparison: ScanComparison) -> dict[str, int]:
    """Return how many lesions there are of each kind that a person should look at."""
    return {kind: comparison.count(kind) for kind in _MEANING}


def render_comparison(comparison: ScanComparison) -> str:
    """Return the page as HTML that is well-formed XML too."""
    style = inlined(__package__, "comparison.css")
    html = html_environment("skindx.scan.compare").get_template(
        "comparison.html.jinja"
    ).render(
        text=text,
        language=spoken(),
        title=text("compared_title", **_counts(comparison)),
        notice=joined(text("unchanged_dangerous"), text("cannot_rule_out"), unreviewed()),
        before=comparison.before.summary,
        after=comparison.after.summary,
        remarks=_remarks(comparison),
        known=comparison.after.summary.scope.text,
        photos=[_photo(photo, comparison) for photo in comparison.photos],
        style=style,
        style_hash=csp_hash(style),
    )  # fmt: skip
    return keep_units(html)


def _not_compared(comparison: ScanComparison) -> list[str]:
    return [text("compared_alone", name=printable(name)) for name in comparison.alone]


def _remarks(comparison: ScanComparison) -> list[str]:
    remarks, later = _not_compared(comparison), comparison.after.summary
    remarks += filter(None, (later.without_urgent, later.scope.learned_from, later.scope.warning))
    sources = comparison.before.summary.source, comparison.after.summary.source
    if sources[0].version != sources[1].version:
        remarks.append(text("compared_bundles"))
    remarks += [
        joined(
            text("compared_by_lesions", name=printable(photo.after.photo.name)),
            text("compared_by_lesions_less"),
        )
        for photo in comparison.photos
        if photo.registration.by_lesions
    ]
    return remarks


def _photo(photo: ComparedPhoto, comparison: ScanComparison) -> dict[str, Any]:
    marked = [change for change in photo.changes if change.kind in _MEANING]
    numbers = {id(change): number for number, change in enumerate(marked, 1)}
    before, after = photo.before, photo.after
    rest = [change for change in photo.changes if change.kind not in _MEANING]
    laid = "compared_laid_lesions" if photo.registration.by_lesions else "compared_laid"
    error, error_mm = round(photo.error_px, 1), photo.error_mm
    place = text("compared_place", error=error)
    if error_mm is not None:
        place = text("compared_place_mm", error=error, mm=round(error_mm, 1))
    name = printable(before.photo.name)
    return {
        "name": word(printable(after.photo.name)),
        "basis": joined(text(laid, name=name, n=photo.registration.points), place),
        "views": [
            _view("compared_view_before", before, marked, numbers, first=True),
            _view("compared_view_after", after, marked, numbers, first=False),
        ],
        "groups": [
            {
                "title": text(title),
                "meaning": text(meaning),
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
        "rest_title": text("compared_rest", n=len(rest)),
    }


def _view(
    key: str,
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
        "title": text(key, name=printable(view.photo.name)),
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
    was, now = change.before, change.after
    captions = [
        text("compared_rank_before", rank=was["rank"]) if was else text("compared_none_before"),
        text("compared_rank_after", rank=now["rank"]) if now else text("compared_none_after"),
    ]
    crops = [
        _crop(photo.before, change.place_before, size),
        _crop(photo.after, change.place_after, size * scale),
    ]
    alts = text("compared_crop_before", number=number), text("compared_crop_after", number=number)
    shown = [
        {"jpeg": jpeg, "alt": alt, "caption": caption}
        for jpeg, alt, caption in zip(crops, alts, captions, strict=True)
    ]
    return {"number": number, "crops": shown, "text": _text(change, comparison)}


def _crop(view: ScanView, place: tuple[float, float], size: float) -> str:
    pixels_HW3 = square_around(view, place, _MARGIN * size)
    return "" if pixels_HW3 is None else b64encode(small_jpeg(pixels_HW3, _CROP_PX)).decode()


def _text(change: LesionChange, comparison: ScanComparison) -> str:
    grown = ""
    if change.growth:
        low, high = change.growth.low, change.growth.high
        grown = text("compared_growth", growth=change.growth.value, low=low, high=high)
    risks = [row["urgent_risk"] for row in (change.before, change.after) if row]
    known = [shown_risk(risk) for risk in risks if risk is not None]
    risk = text("compared_risk", risk=known[-1]) if known else ""
    if len(known) == 2:
        risk = text("compared_risks", before=known[0], after=known[1])
    missing = _missing(change, comparison) if change.kind in ("new", "vanished") else ""
    return joined(grown, *_reasons(change), risk, missing)


def _reasons(change: LesionChange) -> list[str]:
    return [text(REASONS[reason]) for reason in change.reasons]


def _missing(change: LesionChange, comparison: ScanComparison) -> str:
    """Return how often the detector misses such a lesion in the scan that does not have it."""
    row = change.after or change.before
    assert row is not None
    other = comparison.before if change.kind == "new" else comparison.after
    size = ((row["x2"] - row["x1"]) * (row["y2"] - row["y1"])) ** 0.5
    measured = other.summary.recall if other.summary.measured_on.holds_for_photos else None
    for band in measured or ():
        if band.lesions and band.holds(size):
            return text("compared_missed", share=1 - band.recall.value)
    return text("compared_missed_unknown")


def _cells(change: LesionChange) -> list[str]:
    row, after, growth = change.before, change.after, change.growth
    colour, spread = change.colour_change, "–"
    if growth:
        low, high = growth.low, growth.high
        spread = text("compared_col_interval", growth=growth.value, low=low, high=high)
    return [
        str(row["rank"]) if row else "–",
        str(after["rank"]) if after else "–",
        spread,
        "–" if colour is None else text("scan_difference", score=round(colour, 1)),
        joined(*_reasons(change)) or text("compared_same"),
    ]

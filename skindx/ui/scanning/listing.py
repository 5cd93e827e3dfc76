"""The first lesions of a scan as a part of the page: an overview with numbers, a crop each."""

from pathlib import Path
from typing import Any

from skindx.core.atomic_files import read_parquet
from skindx.diagnosis.conclusion import LARGEST_SET
from skindx.diagnosis.record import percent
from skindx.diagnosis.scope import knows, lacks
from skindx.imaging.decode import decode
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.scan.outputs.scan_files import PARQUET
from skindx.scan.outputs.scan_result import read_summary, shown_risk
from skindx.ui.html import data_url, render
from skindx.ui.scanning.answer import ScanAnswer, ScanLesion

SHOWN = 12
"""Lesions in the page; the whole list is in the page of the scan itself."""
_OVERVIEW_PX, _CROP_PX = 1100, 200
_LABELS_ACROSS = 45


def list_html(results: Path, answer: ScanAnswer) -> str:
    """Return the part of the page; images are in the HTML itself."""
    table = read_parquet(results / PARQUET, ("rank", "crop"))
    crops = {row["rank"]: row["crop"] for row in table.to_pylist()}
    summary = read_summary(results)
    rows = [_row(answer, lesion) for lesion in answer.lesions]
    for row in rows[:SHOWN]:
        row["jpeg"] = _small(results / crops[row["rank"]], _CROP_PX)
    views = [
        {
            "width": photo.width,
            "height": photo.height,
            "label": round(max(photo.width, photo.height) / _LABELS_ACROSS, 1),
            "jpeg": _small(results / photo.overview, _OVERVIEW_PX),
            "rows": [row for row in rows if row["photo"] == number],
            "searched": photo.tiles - photo.tiles_without_skin - photo.failed_tiles,
            "skipped": photo.tiles_without_skin,
        }
        for number, photo in enumerate(summary.photos)
    ]
    return render(
        "scan_list.html.jinja",
        answer=answer,
        views=views,
        rows=rows[:SHOWN],
        total=len(rows),
        urgent=sum(bool(lesion.urgent) for lesion in answer.lesions),
        scope=summary.scope,
        knows=knows(summary.known),
        lacks=lacks(summary.unknown_urgent),
        odd=sum(bool(x.difference and x.difference.stands_out) for x in answer.lesions),
    )


def _row(answer: ScanAnswer, lesion: ScanLesion) -> dict[str, Any]:
    x1, y1, x2, y2 = lesion.box
    return {
        "rank": lesion.rank,
        "photo": lesion.photo,
        "x": round(x1, 1),
        "y": round(y1, 1),
        "w": round(x2 - x1, 1),
        "h": round(y2 - y1, 1),
        "may_be": _may_be(answer, lesion),
        "risk": shown_risk(lesion.urgent_risk),
        "urgent": bool(lesion.urgent),
        "stands_out": bool(lesion.difference and lesion.difference.stands_out),
        "unusual": lesion.unusual,
        "size": f"{lesion.diameter_px:.0f} px"
        if lesion.diameter_mm is None
        else f"{lesion.diameter_mm:.1f} mm",
    }


def _may_be(answer: ScanAnswer, lesion: ScanLesion) -> str:
    """Return what a lesion may be: the conditions of its set, or the most probable one."""
    if 0 < len(lesion.possible) <= LARGEST_SET:
        return ", ".join(answer.names.get(key, key) for key in lesion.possible)
    first = answer.names.get(lesion.most_likely, lesion.most_likely)
    likely = f"{first} {percent(lesion.probabilities[lesion.most_likely])}"
    return f"any of {len(lesion.possible)}; first {likely}" if lesion.possible else likely


def _small(path: Path, longest_side: int) -> str:
    return data_url(small_jpeg(decode(path.read_bytes()), longest_side), "image/jpeg")

"""A scan as one HTML page that needs nothing else, and as a PDF to take to a clinician.

The page needs no script to be read as a table.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skindx.core.text import counted, csp_hash, html_environment, inlined, keep_units, printable
from skindx.data.box import Box
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE
from skindx.diagnosis.pdf_sheet import Sheet
from skindx.imaging.resize import small_jpeg
from skindx.scan.outputs.scan_result import (
    NOT_A_DIAGNOSIS,
    ScanResult,
    missed_by_size,
    shown_difference,
    shown_risk,
    shown_size,
)
from skindx.scan.pixel_store import Pixels, ReadRegion, overview
from skindx.scan.scanned_lesions import LEAST_LESIONS, RankedLesion, ScannedPhoto, cut_by
from skindx.texts.catalogue import percent, share_text

if TYPE_CHECKING:
    from PIL import Image


_MARGIN = 0.4
"""Margin on each side of a box, as a share of its longer side."""
_LEAST_PX = 64


def region_around(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """Return a square around a box, cut to the photo: x1, y1, x2, y2 in whole pixels."""
    side = max(box.x2 - box.x1, box.y2 - box.y1) * (1 + 2 * _MARGIN)
    half = max(side, _LEAST_PX) / 2
    x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
    return (
        max(0, int(np.floor(x - half))),
        max(0, int(np.floor(y - half))),
        min(width, int(np.ceil(x + half))),
        min(height, int(np.ceil(y + half))),
    )


def crop(read: ReadRegion, region: tuple[int, int, int, int], longest_side: int) -> Pixels:
    """Return pixels_HW3 of a region with at most `longest_side` pixels along its longer side."""
    x1, y1, x2, y2 = region
    return read(x1, y1, x2, y2, min(1.0, longest_side / max(x2 - x1, y2 - y1)))


PAGE = "scan.html"
_OVERVIEW_PX, _CROP_PX = 2000, 224
_OVERVIEW_QUALITY = 82
_LABELS_ACROSS = 45
"""Ratio of the photo's longer side to the height of a lesion's number, without a script."""


def render_scan(result: ScanResult, reads: Sequence[ReadRegion]) -> str:
    """Return the page as HTML that is well-formed XML too; `reads` give the photos' pixels."""
    environment = html_environment("skindx.scan.outputs")
    rows = [_row(result, ranked, reads[ranked.photo]) for ranked in result.ranked]
    style, script = (inlined(__package__, name) for name in ("scan.css", "scan.js"))
    sizes_px = [ranked.diameter_px for ranked in result.ranked]
    html = environment.get_template("scan.html.jinja").render(
        result=result,
        title=f"{counted(len(result.ranked), 'lesion')} on {counted(len(result.photos), 'photo')}",
        not_a_diagnosis=NOT_A_DIAGNOSIS,
        summary=summary(result),
        missed_sentence=result.missed,
        missed=missed_by_size(result.recall or (), sizes_px, result.measured_on),
        problems=problems(result),
        views=[
            _view(place, photo, read, rows)
            for place, (photo, read) in enumerate(zip(result.photos, reads, strict=True))
        ],
        rows=rows,
        scope=result.scope,
        limits=limits(result),
        flags=_flags(rows),
        may_be_title="May be" if _has_sets(result) else "Most likely",
        has_sets=_has_sets(result),
        threshold=threshold_sentence(result),
        compared=_compared(result),
        sizes=_sizes(result.photos),
        hashes=", ".join(photo.sha256[:16] for photo in result.photos),
        style=style,
        script=script,
        style_hash=csp_hash(style),
        script_hash=csp_hash(script),
    )
    return keep_units(html)


def summary(result: ScanResult) -> str:
    """Return in a sentence what was found."""
    urgent = sum(bool(ranked.lesion.urgent) for ranked in result.ranked)
    odd = sum(bool(ranked.difference and ranked.difference.stands_out) for ranked in result.ranked)
    outlined = counted(len(result.ranked), "lesion")
    if result.no_urgent_risk:
        first = f"{outlined} outlined; this bundle knows no urgent condition and gives no risk"
    elif result.miss_rate is None:
        first = f"{outlined} outlined; this bundle has no threshold for an urgent risk"
    else:
        first = f"{outlined} outlined; the urgent risk of {urgent} reaches the bundle's threshold"
    return f"{first}, and {odd} stand{'s' if odd == 1 else ''} out from the person's others."


def limits(result: ScanResult) -> list[str]:
    """Return what the bundle cannot say because of what it does not know, in sentences."""
    scope = result.scope
    return list(filter(None, (scope.learned_from, result.no_urgent_risk, scope.warning)))


def problems(result: ScanResult) -> list[str]:
    """Return what was not searched though it should have been."""
    if result.problems:
        return [printable(sentence) for sentence in result.problems]
    return [
        f"{counted(photo.failed_tiles, 'tile')} of {photo.tiles} of {printable(photo.name)} could "
        f"not be searched, because they ended the processes that worked on them; look at the "
        f"photo itself."
        for photo in result.photos
        if photo.failed_tiles
    ]


def threshold_sentence(result: ScanResult) -> str:
    """Return what the threshold of urgent promises, and how many others it calls urgent."""
    if result.no_urgent_risk:
        return result.no_urgent_risk
    if result.miss_rate is None:
        return "This bundle has no controlled threshold, so no lesion is marked as urgent."
    called_urgent = ""
    if result.sent_on:
        called_urgent = (
            f" Of calibration images of other conditions, {share_text(result.sent_on)} are called "
            "urgent."
        )
    return (
        f"▲ marks a risk that reaches the bundle's threshold: of urgent lesions like those it was "
        f"fitted on, at most {percent(result.miss_rate)} lie below it.{called_urgent} They were "
        f"photographed close up; for crops of a wide photo this is not shown."
    )


def _has_sets(result: ScanResult) -> bool:
    return any(ranked.lesion.possible for ranked in result.ranked)


def _row(result: ScanResult, ranked: RankedLesion, read: ReadRegion) -> dict[str, Any]:
    box, photo = ranked.lesion.box, result.photos[ranked.photo]
    region = region_around(box, photo.width, photo.height)
    jpeg = small_jpeg(crop(read, region, _CROP_PX), _CROP_PX)
    p_value = ranked.lesion.ood_p_value
    unusual = p_value is not None and p_value < LEAST_OOD_P_VALUE
    stands_out = bool(ranked.difference and ranked.difference.stands_out)
    may_be = printable(result.may_be(ranked))
    cut = bool(cut_by((box.x1, box.y1, box.x2, box.y2), photo.width, photo.height))
    flags = {
        "urgent": ranked.lesion.urgent,
        "stands_out": stands_out,
        "unusual": unusual,
        "cut": cut,
    }
    return {
        "rank": ranked.rank,
        "photo": ranked.photo,
        "x": round(box.x1, 1),
        "y": round(box.y1, 1),
        "w": round(box.x2 - box.x1, 1),
        "h": round(box.y2 - box.y1, 1),
        "round": round(0.12 * min(box.x2 - box.x1, box.y2 - box.y1), 1),
        "box": " ".join(f"{value:.1f}" for value in (box.x1, box.y1, box.x2, box.y2)),
        "crop_box": f"{region[0]} {region[1]} {region[2] - region[0]} {region[3] - region[1]}",
        "jpeg": b64encode(jpeg).decode(),
        "risk": shown_risk(ranked.lesion.urgent_risk),
        "urgent": bool(ranked.lesion.urgent),
        "may_be": may_be,
        "unusual": unusual,
        "difference": shown_difference(ranked),
        "stands_out": stands_out,
        "cut": cut,
        "size": shown_size(ranked),
        "score": f"{box.score:.2f}" if box.score is not None else "–",
        "flags": " ".join(name for name, is_so in flags.items() if is_so),
        "words": f"{ranked.rank} {may_be} {printable(photo.name)}".lower(),
    }


def _view(
    place: int, photo: ScannedPhoto, read: ReadRegion, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    pixels_HW3 = overview(read, photo.width, photo.height, _OVERVIEW_PX)
    jpeg = small_jpeg(pixels_HW3, _OVERVIEW_PX, quality=_OVERVIEW_QUALITY)
    return {
        "name": printable(photo.name),
        "width": photo.width,
        "height": photo.height,
        "label": round(max(photo.width, photo.height) / _LABELS_ACROSS, 1),
        "jpeg": b64encode(jpeg).decode(),
        "rows": [row for row in rows if row["photo"] == place],
        "caption": caption(photo),
    }


def caption(photo: ScannedPhoto) -> str:
    scale = f", {photo.mm_per_pixel:.4g} mm per pixel" if photo.mm_per_pixel else ""
    searched = photo.tiles - photo.tiles_without_skin - photo.failed_tiles
    return (
        f"{printable(photo.name)}: {photo.width:,} × {photo.height:,} pixels{scale}. Searched in "
        f"{counted(searched, 'tile')}; {photo.tiles_without_skin:,} without skin were skipped."
    )


def _flags(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the choices of the filter that some lesion fits."""
    names = {
        "urgent": "Urgent",
        "stands_out": "Stands out",
        "unusual": "Unusual for the model",
        "cut": "Partly seen",
    }
    return [
        (flag, f"{name} ({count})")
        for flag, name in names.items()
        if (count := sum(flag in row["flags"].split() for row in rows))
    ]


def _compared(result: ScanResult) -> str:
    if not result.ranked or result.ranked[0].difference is None:
        return f"Below {LEAST_LESIONS} lesions nothing is compared."
    return f"Every lesion was compared with {result.ranked[0].difference.compared_with} others."


def _sizes(photos: Sequence[ScannedPhoto]) -> str:
    if all(photo.mm_per_pixel for photo in photos):
        return "Millimetres hold where the skin is as far from the camera as what was measured."
    return "Without a scale it is in pixels of the photo."


PDF = "scan.pdf"
_PAPER_OVERVIEW_PX, _PAPER_CROP_PX = 2000, 320
_MOST_CROPS, _MOST_ROWS = 30, 200
_NOTICE_FILL = (255, 243, 214)
_LINE, _RIM, _URGENT = (255, 255, 255), (10, 30, 60), (255, 154, 82)
_CROP_ROOM_MM = 55
_MOST_HEIGHT = 0.95
"""Height of a photo on paper as a share of the page's width: the first paragraphs need room."""
_PAPER_LABELS_ACROSS = 50


def pdf_bytes(result: ScanResult, reads: Sequence[ReadRegion]) -> bytes:
    """Return the report; the same result at the same time gives the same bytes.

    Raises UserError without fpdf2.
    """
    sheet = Sheet("skindx scan", result.made_at)
    sheet.text("skindx scan", 16, bold=True)
    sheet.text(f"Made on {result.made_at:%d %B %Y, %H:%M %Z}".strip(), faint=True)
    sheet.text(NOT_A_DIAGNOSIS, 10, bold=True, fill=_NOTICE_FILL)
    sheet.text(summary(result), 11)
    sheet.text(result.missed)
    for problem in problems(result):
        sheet.text(problem, bold=True)
    for sentence in limits(result):
        sheet.text(sentence, bold=True)
    for place, (photo, read) in enumerate(zip(result.photos, reads, strict=True)):
        of_photo = [ranked for ranked in result.ranked if ranked.photo == place]
        image = _outlined(photo, read, of_photo)
        sheet.heading(f"Photo {place + 1}", 180 * image.height / image.width + 15)
        sheet.images([image], [caption(photo)], 1)
    if result.ranked:
        _lesions(sheet, result, reads)
    source = result.source
    sheet.heading("Basis")
    sheet.text(threshold_sentence(result))
    sheet.text(result.scope.text)
    sheet.text(
        f"Bundle {source.name} of {source.created[:10]}, version {source.version[:16]}, "
        f"{source.digests}; taxonomy {source.taxonomy}, {source.review}."
    )
    hashes = ", ".join(photo.sha256[:16] for photo in result.photos)
    sheet.text(f"The SHA-256 hashes of the photo files begin with {hashes}.", faint=True)
    return sheet.pdf_bytes()


def _lesions(sheet: Sheet, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    from PIL import Image

    sheet.heading("First lesions by rank", _CROP_ROOM_MM)
    images, captions = [], []
    for ranked in result.ranked[:_MOST_CROPS]:
        photo = result.photos[ranked.photo]
        region = region_around(ranked.lesion.box, photo.width, photo.height)
        images.append(Image.fromarray(crop(reads[ranked.photo], region, _PAPER_CROP_PX)))
        urgent = ", urgent" if ranked.lesion.urgent else ""
        captions.append(
            f"{ranked.rank}. Urgent risk {shown_risk(ranked.lesion.urgent_risk)}{urgent}. "
            f"{shown_size(ranked)}."
        )
    sheet.images(images, captions, 6)
    sheet.heading("Lesions by rank")
    rows = [("rank", "photo", "urgent risk", "may be", "differs from the others", "size")]
    rows += [
        (
            str(ranked.rank),
            str(ranked.photo + 1),
            shown_risk(ranked.lesion.urgent_risk) + (" urgent" if ranked.lesion.urgent else ""),
            result.may_be(ranked),
            shown_difference(ranked),
            shown_size(ranked),
        )
        for ranked in result.ranked[:_MOST_ROWS]
    ]
    sheet.table(rows, (8, 8, 16, 40, 26, 12))
    if (left := len(result.ranked) - _MOST_ROWS) > 0:
        sheet.text(f"The page and the tables have {counted(left, 'further lesion')}.", faint=True)


def _outlined(photo: ScannedPhoto, read: ReadRegion, ranked: list[RankedLesion]) -> "Image.Image":
    """Draw the numbered outlines, the first lesion on top."""
    from PIL import Image, ImageDraw, ImageFont

    pixels_HW3: Pixels = overview(read, photo.width, photo.height, _PAPER_OVERVIEW_PX)
    image = Image.fromarray(pixels_HW3)
    scale = image.width / photo.width
    draw = ImageDraw.Draw(image)
    thick = max(1, max(image.size) // 900)
    font = ImageFont.load_default(max(image.size) / _PAPER_LABELS_ACROSS)
    for one in reversed(ranked):
        box, colour = one.lesion.box, _URGENT if one.lesion.urgent else _LINE
        corners = [box.x1 * scale, box.y1 * scale, box.x2 * scale, box.y2 * scale]
        grown = [
            value + sign * 2 * thick for value, sign in zip(corners, (-1, -1, 1, 1), strict=True)
        ]
        draw.rectangle(grown, outline=_RIM, width=3 * thick)
        draw.rectangle(grown, outline=colour, width=thick)
        draw.text(
            (grown[0], grown[1] - 1),
            str(one.rank),
            fill=colour,
            font=font,
            anchor="lb",
            stroke_width=2 * thick,
            stroke_fill=_RIM,
        )
    return _padded(image)


def _padded(image: "Image.Image") -> "Image.Image":
    """Return a tall photo with white on both sides, so that it is no higher than it may be."""
    from PIL import Image

    width = round(image.height / _MOST_HEIGHT)
    if image.width >= width:
        return image
    wide = Image.new("RGB", (width, image.height), "white")
    wide.paste(image, ((width - image.width) // 2, 0))
    return wide

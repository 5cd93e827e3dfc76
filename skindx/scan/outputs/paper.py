"""The scan as a PDF, to take to a clinician: the photos with outlines, then the first lesions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.core.text import counted
from skindx.diagnosis.pdf_sheet import Sheet
from skindx.scan.lesion import ScannedPhoto
from skindx.scan.outputs.crops import crop, region_around
from skindx.scan.outputs.missed import missed_sentence
from skindx.scan.outputs.page import (
    caption,
    limits,
    problems,
    summary,
    threshold_sentence,
)
from skindx.scan.outputs.result import (
    NOT_A_DIAGNOSIS,
    ScanResult,
    shown_difference,
    shown_risk,
    shown_size,
)
from skindx.scan.pixels import ReadRegion, overview
from skindx.scan.ranking import RankedLesion

if TYPE_CHECKING:
    from PIL import Image

PDF = "scan.pdf"
_OVERVIEW_PX, _CROP_PX = 2000, 320
_MOST_CROPS, _MOST_ROWS = 30, 200
_NOTICE_FILL = (255, 243, 214)
_LINE, _RIM, _URGENT = (255, 255, 255), (10, 30, 60), (255, 154, 82)
_CROP_ROOM_MM = 55
_MOST_HEIGHT = 0.95
"""Of a photo on paper, as a share of the page's width: it has room below the first paragraphs."""
_LABELS_ACROSS = 50


def pdf_bytes(result: ScanResult, reads: Sequence[ReadRegion]) -> bytes:
    """Return the report; the same result at the same time gives the same bytes.

    Raises UserError without fpdf2.
    """
    sheet = Sheet("skindx scan", result.made_at)
    sheet.text("skindx scan", 16, bold=True)
    sheet.text(f"Made on {result.made_at:%d %B %Y, %H:%M}", faint=True)
    sheet.text(NOT_A_DIAGNOSIS, 10, bold=True, fill=_NOTICE_FILL)
    sheet.text(summary(result), 11)
    sheet.text(missed_sentence(result.recall, [found.diameter_px for found in result.ranked]))
    for problem in problems(result):
        sheet.text(problem, bold=True)
    for sentence in limits(result):
        sheet.text(sentence, bold=True)
    for place, (photo, read) in enumerate(zip(result.photos, reads, strict=True)):
        own = [found for found in result.ranked if found.photo == place]
        image = _outlined(photo, read, own)
        sheet.heading(f"Photo {place + 1}", 180 * image.height / image.width + 15)
        sheet.images([image], [caption(photo)], 1)
    if result.ranked:
        _lesions(sheet, result, reads)
    source = result.source
    sheet.heading("Basis")
    sheet.text(threshold_sentence(result))
    sheet.text(result.scope.text)
    sheet.text(
        f"Bundle {source.name} of {source.created[:10]}, version {source.version[:16]}, digest "
        f"{source.digest[:16] or 'unknown'}; taxonomy {source.taxonomy}, {source.review}."
    )
    hashes = ", ".join(photo.sha256[:16] for photo in result.photos)
    sheet.text(f"The SHA-256 hashes of the photo files begin with {hashes}.", faint=True)
    return sheet.pdf_bytes()


def _lesions(sheet: Sheet, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    from PIL import Image

    sheet.heading("First lesions by rank", _CROP_ROOM_MM)
    images, captions = [], []
    for found in result.ranked[:_MOST_CROPS]:
        photo = result.photos[found.photo]
        region = region_around(found.lesion.box, photo.width, photo.height)
        images.append(Image.fromarray(crop(reads[found.photo], region, _CROP_PX)))
        urgent = ", urgent" if found.lesion.urgent else ""
        captions.append(
            f"{found.rank}. Urgent risk {shown_risk(found.lesion.urgent_risk)}{urgent}. "
            f"{shown_size(found)}."
        )
    sheet.images(images, captions, 6)
    sheet.heading("Lesions by rank")
    rows = [("rank", "photo", "urgent risk", "may be", "differs from the others", "size")]
    rows += [
        (
            str(found.rank),
            str(found.photo + 1),
            shown_risk(found.lesion.urgent_risk) + (" urgent" if found.lesion.urgent else ""),
            result.may_be(found),
            shown_difference(found),
            shown_size(found),
        )
        for found in result.ranked[:_MOST_ROWS]
    ]
    sheet.table(rows, (8, 8, 16, 40, 26, 12))
    if (left := len(result.ranked) - _MOST_ROWS) > 0:
        sheet.text(f"The page and the tables have {counted(left, 'further lesion')}.", faint=True)


def _outlined(photo: ScannedPhoto, read: ReadRegion, found: list[RankedLesion]) -> "Image.Image":
    """Draw the numbered outlines, the first lesion on top."""
    from PIL import Image, ImageDraw, ImageFont

    pixels_HW3: NDArray[np.uint8] = overview(read, photo.width, photo.height, _OVERVIEW_PX)
    image = Image.fromarray(pixels_HW3)
    scale = image.width / photo.width
    draw = ImageDraw.Draw(image)
    thick = max(1, max(image.size) // 900)
    font = ImageFont.load_default(max(image.size) / _LABELS_ACROSS)
    for one in reversed(found):
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

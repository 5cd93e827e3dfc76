"""A scan as one HTML page that needs nothing else, and as a PDF to take to a clinician.

The page needs no script to be read as a table.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skindx.core.text import csp_hash, html_environment, inlined, keep_units, printable
from skindx.data.box import Box
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE
from skindx.diagnosis.report.pdf_sheet import Sheet
from skindx.imaging.resize import small_jpeg
from skindx.scan.outputs.scan_result import (
    ScanResult,
    missed_by_size,
    not_a_diagnosis,
    shown_difference,
    shown_risk,
    shown_size,
)
from skindx.scan.pixel_store import Pixels, ReadRegion, overview
from skindx.scan.scanned_lesions import (
    LEAST_LESIONS,
    STANDS_OUT,
    RankedLesion,
    ScannedPhoto,
    cut_by,
)
from skindx.texts.catalogue import joined, script_sentences, spoken, text

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
    lesions, photos = len(result.ranked), len(result.photos)
    title = text("scan_title", n=lesions)
    if photos > 1:
        title = text("scan_title_photos", n=lesions, photos=photos)
    source = result.source
    html = environment.get_template("scan.html.jinja").render(
        text=text,
        language=spoken(),
        result=result,
        title=title,
        not_a_diagnosis=not_a_diagnosis(),
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
        may_be_title=_may_be_title(result),
        has_sets=_has_sets(result),
        threshold=threshold_sentence(result),
        compared=_compared(result),
        sizes=_sizes(result.photos),
        stands_out=STANDS_OUT,
        shown=script_sentences()["sentences"]["js_scan_shown"]["other"],
        basis=joined(*_basis(result), "" if source.calibrated else text("not_calibrated")),
        style=style,
        script=script,
        style_hash=csp_hash(style),
        script_hash=csp_hash(script),
    )
    return keep_units(html)


def summary(result: ScanResult) -> str:
    """Return in sentences what was found."""
    urgent = sum(bool(ranked.lesion.urgent) for ranked in result.ranked)
    odd = sum(bool(ranked.difference and ranked.difference.stands_out) for ranked in result.ranked)
    risks = text("scan_urgent", n=urgent) if urgent else text("scan_urgent_none")
    if result.no_urgent_risk:
        risks = ""  # that stands among the limits
    elif result.miss_rate is None:
        risks = text("scan_no_threshold")
    others = text("scan_odd", n=odd) if odd else text("scan_odd_none")
    return joined(text("scan_outlined", n=len(result.ranked)), risks, others)


def limits(result: ScanResult) -> list[str]:
    """Return what the bundle cannot say because of what it does not know, in sentences."""
    scope = result.scope
    return list(filter(None, (scope.learned_from, result.no_urgent_risk, scope.warning)))


def problems(result: ScanResult) -> list[str]:
    """Return what was not searched though it should have been."""
    if result.problems:
        return [printable(sentence) for sentence in result.problems]
    return [
        text(
            "scan_tiles_failed",
            failed=photo.failed_tiles,
            tiles=photo.tiles,
            name=printable(photo.name),
        )
        for photo in result.photos
        if photo.failed_tiles
    ]


def threshold_sentence(result: ScanResult) -> str:
    """Return what the threshold of urgent promises, and how many others it calls urgent."""
    if result.no_urgent_risk:
        return result.no_urgent_risk
    if result.miss_rate is None:
        return text("scan_no_threshold")
    return joined(
        text("scan_threshold"),
        text("scan_threshold_misses", most=result.miss_rate),
        text("scan_threshold_raises", share=result.sent_on) if result.sent_on else "",
        text("scan_threshold_close"),
    )


def _has_sets(result: ScanResult) -> bool:
    return any(ranked.lesion.possible for ranked in result.ranked)


def _may_be_title(result: ScanResult) -> str:
    return text("scan_may_be") if _has_sets(result) else text("scan_most_likely")


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
        "size": shown_size(ranked.diameter_px, ranked.diameter_mm),
        "score": "" if box.score is None else text("scan_score", score=box.score),
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
    """Return in sentences how large a photo is, and what of it was searched."""
    searched = photo.tiles - photo.tiles_without_skin - photo.failed_tiles
    size = {"name": printable(photo.name), "width": photo.width, "height": photo.height}
    scale = photo.mm_per_pixel and float(f"{photo.mm_per_pixel:.4g}")
    return joined(
        text("scan_photo_scale", **size, scale=scale) if scale else text("scan_photo_size", **size),
        text("scan_in_tiles", n=searched),
        text("scan_skipped", n=photo.tiles_without_skin),
    )


def _flags(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the choices of the filter that some lesion fits."""
    keys = {
        "urgent": "scan_only_urgent",
        "stands_out": "scan_only_stands_out",
        "unusual": "scan_only_unusual",
        "cut": "scan_only_cut",
    }
    return [
        (flag, text(key, n=count))
        for flag, key in keys.items()
        if (count := sum(flag in row["flags"].split() for row in rows))
    ]


def _compared(result: ScanResult) -> str:
    if not result.ranked or result.ranked[0].difference is None:
        return text("scan_compared_from", least=LEAST_LESIONS)
    return text("scan_compared_with", n=result.ranked[0].difference.compared_with)


def _sizes(photos: Sequence[ScannedPhoto]) -> str:
    if all(photo.mm_per_pixel for photo in photos):
        return text("scan_sizes_mm")
    return text("scan_sizes_px")


def _basis(result: ScanResult) -> list[str]:
    """Return in sentences which bundle answered, and the hashes of the photos."""
    source = result.source
    bundle = {"name": source.name, "day": source.created[:10], "version": source.version[:16]}
    return [
        text("bundle", **bundle),
        text("bundle_digest", digest=source.digest[:16]) if source.digest else "",
        text("bundle_evaluation", digest=source.evaluation[:16]) if source.evaluation else "",
        text("taxonomy", taxonomy=source.taxonomy, review=source.review),
        text("photo_hashes", hashes=[photo.sha256[:16] for photo in result.photos]),
    ]


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
    sheet = Sheet(text("scan_head"), result.made_at)
    sheet.text(text("scan_head"), 16, bold=True)
    sheet.text(text("scan_made_on", when=result.made_at), faint=True)
    sheet.text(not_a_diagnosis(), 10, bold=True, fill=_NOTICE_FILL)
    sheet.text(summary(result), 11)
    sheet.text(result.missed)
    for problem in problems(result):
        sheet.text(problem, bold=True)
    for sentence in limits(result):
        sheet.text(sentence, bold=True)
    for place, (photo, read) in enumerate(zip(result.photos, reads, strict=True)):
        of_photo = [ranked for ranked in result.ranked if ranked.photo == place]
        image = _outlined(photo, read, of_photo)
        heading = text("photo_label", number=place + 1)
        sheet.heading(heading, 180 * image.height / image.width + 22)
        sheet.images([image], [caption(photo)], 1)
    if result.ranked:
        _lesions(sheet, result, reads)
    sheet.heading(text("scan_knows"))
    sheet.text(threshold_sentence(result))
    sheet.text(result.scope.text)
    sheet.text(joined(*_basis(result)), faint=True)
    return sheet.pdf_bytes()


def _lesions(sheet: Sheet, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    from PIL import Image

    sheet.heading(text("scan_first_lesions"), _CROP_ROOM_MM)
    images, captions = [], []
    for ranked in result.ranked[:_MOST_CROPS]:
        photo = result.photos[ranked.photo]
        region = region_around(ranked.lesion.box, photo.width, photo.height)
        images.append(Image.fromarray(crop(reads[ranked.photo], region, _PAPER_CROP_PX)))
        risk = text("scan_risk", risk=_risk(ranked))
        size = shown_size(ranked.diameter_px, ranked.diameter_mm)
        captions.append(f"{ranked.rank} · {risk} · {size}")
    sheet.images(images, captions, 6)
    sheet.heading(text("scan_by_rank"))
    columns = [text("scan_rank"), text("scan_photo"), text("scan_urgent_risk")]
    columns += [_may_be_title(result), text("scan_differs"), text("scan_size")]
    rows = [tuple(columns)]
    rows += [
        (
            str(ranked.rank),
            str(ranked.photo + 1),
            _risk(ranked),
            result.may_be(ranked),
            shown_difference(ranked),
            shown_size(ranked.diameter_px, ranked.diameter_mm),
        )
        for ranked in result.ranked[:_MOST_ROWS]
    ]
    sheet.table(rows, (8, 8, 16, 40, 26, 12))
    if (left := len(result.ranked) - _MOST_ROWS) > 0:
        sheet.text(text("scan_more_lesions", n=left), faint=True)


def _risk(ranked: RankedLesion) -> str:
    """Return the urgent risk as paper shows it, which has no colours."""
    risk = shown_risk(ranked.lesion.urgent_risk)
    return f"{risk}, {text('tier_urgent').lower()}" if ranked.lesion.urgent else risk


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

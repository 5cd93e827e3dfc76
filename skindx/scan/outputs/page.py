"""The scan as one HTML page that needs nothing else, and no script to be read as a table."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from skindx.core.text import counted, html_environment, keep_units, printable
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE
from skindx.diagnosis.guarantees import shown_share
from skindx.diagnosis.record import percent
from skindx.diagnosis.scope import lacks
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.scan.lesion import ScannedPhoto
from skindx.scan.outputs.crops import crop, region_around
from skindx.scan.outputs.inlining import csp_hash, inlined
from skindx.scan.outputs.missed import missed_by_size, missed_sentence
from skindx.scan.outputs.result import (
    NOT_A_DIAGNOSIS,
    ScanResult,
    shown_difference,
    shown_risk,
    shown_size,
)
from skindx.scan.pixels import ReadRegion, overview
from skindx.scan.ranking import RankedLesion
from skindx.scan.ugly_duckling import LEAST_LESIONS

PAGE = "scan.html"
_OVERVIEW_PX, _CROP_PX = 2000, 224
_OVERVIEW_QUALITY = 82
_LABELS_ACROSS = 45
"""Without a script a number is as high as the photo's longer side through this."""


def render(result: ScanResult, reads: Sequence[ReadRegion]) -> str:
    """Return the page as HTML that is well-formed XML too; `reads` give the photos' pixels."""
    environment = html_environment("skindx.scan.outputs")
    rows = [_row(result, found, reads[found.photo]) for found in result.ranked]
    style, script = (inlined(__package__, name) for name in ("scan.css", "scan.js"))
    sizes_px = [found.diameter_px for found in result.ranked]
    html = environment.get_template("scan.html.jinja").render(
        result=result,
        title=_title(result),
        not_a_diagnosis=NOT_A_DIAGNOSIS,
        summary=summary(result),
        missed_sentence=missed_sentence(result.recall, sizes_px),
        missed=missed_by_size(result.recall or (), sizes_px),
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
    urgent = sum(bool(found.lesion.urgent) for found in result.ranked)
    odd = sum(bool(found.difference and found.difference.stands_out) for found in result.ranked)
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
    sentences = (
        scope.learned_from,
        result.no_urgent_risk,
        scope.warning,
        lacks(scope.unknown_urgent),
    )
    return [sentence for sentence in sentences if sentence]


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
    others = ""
    if result.sent_on:
        others = (
            f" Of calibration images of other conditions, {shown_share(result.sent_on)} are urgent "
            "by it."
        )
    return (
        f"▲ marks a risk that reaches the bundle's threshold: of urgent lesions like those it was "
        f"fitted on, at most {percent(result.miss_rate)} lie below it.{others} They were "
        f"photographed close up; for crops of a wide photo this is not shown."
    )


def _title(result: ScanResult) -> str:
    found, photos = len(result.ranked), len(result.photos)
    return f"{counted(found, 'lesion')} on {counted(photos, 'photo')}"


def _has_sets(result: ScanResult) -> bool:
    return any(found.lesion.possible for found in result.ranked)


def _row(result: ScanResult, found: RankedLesion, read: ReadRegion) -> dict[str, Any]:
    box, photo = found.lesion.box, result.photos[found.photo]
    region = region_around(box, photo.width, photo.height)
    jpeg = small_jpeg(crop(read, region, _CROP_PX), _CROP_PX)
    p_value = found.lesion.ood_p_value
    unusual = p_value is not None and p_value < LEAST_OOD_P_VALUE
    stands_out = bool(found.difference and found.difference.stands_out)
    may_be = printable(result.may_be(found))
    flags = {"urgent": found.lesion.urgent, "stands_out": stands_out, "unusual": unusual}
    return {
        "rank": found.rank,
        "photo": found.photo,
        "x": round(box.x1, 1),
        "y": round(box.y1, 1),
        "w": round(box.x2 - box.x1, 1),
        "h": round(box.y2 - box.y1, 1),
        "round": round(0.12 * min(box.x2 - box.x1, box.y2 - box.y1), 1),
        "box": " ".join(f"{value:.1f}" for value in (box.x1, box.y1, box.x2, box.y2)),
        "crop_box": f"{region[0]} {region[1]} {region[2] - region[0]} {region[3] - region[1]}",
        "jpeg": b64encode(jpeg).decode(),
        "risk": shown_risk(found.lesion.urgent_risk),
        "urgent": bool(found.lesion.urgent),
        "may_be": may_be,
        "unusual": unusual,
        "difference": shown_difference(found),
        "stands_out": stands_out,
        "size": shown_size(found),
        "score": f"{box.score:.2f}" if box.score is not None else "–",
        "flags": " ".join(name for name, is_so in flags.items() if is_so),
        "words": f"{found.rank} {may_be} {printable(photo.name)}".lower(),
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
    """Return what is known of a photo and its search."""
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
    }
    return [
        (flag, f"{name} ({count})")
        for flag, name in names.items()
        if (count := sum(flag in row["flags"].split() for row in rows))
    ]


def _compared(result: ScanResult) -> str:
    if not result.ranked or result.ranked[0].difference is None:
        return f"Below {LEAST_LESIONS} lesions nothing is compared."
    return f"Every lesion was compared with {result.ranked[0].difference.others} others."


def _sizes(photos: Sequence[ScannedPhoto]) -> str:
    if all(photo.mm_per_pixel for photo in photos):
        return "Millimetres hold where the skin is as far from the camera as what was measured."
    return "Without a scale it is in pixels of the photo."

"""The folder of a scan, whole or not at all."""

import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.scan.outputs.coco import write_coco
from skindx.scan.outputs.crops import crop, region_around
from skindx.scan.outputs.moving import move
from skindx.scan.outputs.page import PAGE, render, threshold_sentence
from skindx.scan.outputs.paper import PDF, pdf_bytes
from skindx.scan.outputs.result import ScanResult
from skindx.scan.outputs.summary import SUMMARY, summary_of, write_summary
from skindx.scan.outputs.table import write_tables
from skindx.scan.pixels import ReadRegion, overview

CROPS, OVERVIEWS = "crops", "overviews"
_CROP_PX, _OVERVIEW_PX = 768, 4096
_QUALITY = 90
_ASIDE = ".results-"


def check_output(folder: Path) -> None:
    """Raise UserError where the scan would replace what no scan has written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder; give a new folder to --out.")
    for name in (CROPS, OVERVIEWS):
        for path in (folder / name).iterdir() if (folder / name).is_dir() else ():
            if not re.fullmatch(r"\d+\.jpg", path.name):
                raise UserError(f"{path} is of no scan; give a new folder to --out.")


def write_scan(folder: Path, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    """Write tables, COCO, crops, overviews, page and PDF; those of an older scan are replaced.

    `reads` give the pixels of `result.photos`; no photo is held in memory as a whole. All is
    written aside and moved to its place at the end, `scan.json` last: without it a folder counts
    as no scan. Other files of the folder stay. Without fpdf2 there is no PDF. Raises UserError.
    """
    check_output(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_ASIDE}*"):  # by a scan that was killed
        shutil.rmtree(left)
    new = folder / f"{_ASIDE}{secrets.token_hex(4)}"
    new.mkdir()
    try:
        _write(new, result, reads)
        move(new, folder, SUMMARY)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write(new: Path, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    (new / CROPS).mkdir()
    (new / OVERVIEWS).mkdir()
    crops = {found.rank: f"{CROPS}/{found.rank:04d}.jpg" for found in result.ranked}
    for found in result.ranked:
        photo = result.photos[found.photo]
        region = region_around(found.lesion.box, photo.width, photo.height)
        cut_HW3 = crop(reads[found.photo], region, _CROP_PX)
        (new / crops[found.rank]).write_bytes(small_jpeg(cut_HW3, _CROP_PX, quality=_QUALITY))
    overviews = []
    for number, (photo, read) in enumerate(zip(result.photos, reads, strict=True), 1):
        pixels_HW3 = overview(read, photo.width, photo.height, _OVERVIEW_PX)
        overviews.append(f"{OVERVIEWS}/{number:02d}.jpg")
        jpeg = small_jpeg(pixels_HW3, _OVERVIEW_PX, quality=_QUALITY)
        (new / overviews[-1]).write_bytes(jpeg)
    write_tables(new, result, crops)
    write_coco(new, result)
    (new / PAGE).write_text(render(result, reads), encoding="utf-8")
    if not missing_modules("fpdf"):
        (new / PDF).write_bytes(pdf_bytes(result, reads))
    write_summary(new, summary_of(result, overviews, threshold_sentence(result)))

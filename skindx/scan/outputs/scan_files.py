"""The folder of a scan, whole or not at all: Parquet, CSV, COCO, crops, page and PDF."""

import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skindx.core.atomic_files import entries, read_parquet
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.core.private_files import (
    make_private,
    private_file,
    renew_private,
    write_private,
    write_private_csv,
    write_private_json,
)
from skindx.core.text import printable
from skindx.core.untrusted import MALFORMED, MEGABYTE, read_json
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import coco_json
from skindx.data.tables.cells import no_formula
from skindx.diagnosis.scope import Scope
from skindx.imaging.resize import small_jpeg
from skindx.scan.outputs.scan_pages import (
    PAGE,
    PDF,
    crop,
    pdf_bytes,
    region_around,
    render_scan,
    threshold_sentence,
)
from skindx.scan.outputs.scan_result import (
    SUMMARY,
    ScanResult,
    damaged_scan,
    not_a_diagnosis,
    read_summary,
    summary_of,
)
from skindx.scan.pixel_store import ReadRegion, overview
from skindx.scan.scanned_lesions import RankedLesion, ScannedLesion, ScannedPhoto
from skindx.taxonomy import SkinClass, urgent_known
from skindx.texts.catalogue import joined, text

PARQUET, CSV = "lesions.parquet", "lesions.csv"
CLASSES = b"classes"
"""Key of the schema's metadata: the classes of `probabilities`, with commas between."""
_ONLY_PARQUET = ("probabilities", "embedding")
_LONGEST_COCO = 256 * MEGABYTE


def write_tables(folder: Path, result: ScanResult, crops: Mapping[int, str]) -> None:
    """Write both tables, a row a lesion by rank; `crops` are paths by rank.

    Each row has what the model does not know: a table is read without the page.
    """
    rows = [_row(result, ranked, crops[ranked.rank]) for ranked in result.ranked]
    keys = ",".join(one.key for one in result.classes)
    _write_rows(folder, rows, {CLASSES: keys.encode()})


def _write_rows(folder: Path, rows: list[dict[str, Any]], metadata: dict[bytes, bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(_columns(), metadata=metadata)
    with private_file(folder / PARQUET) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    names = [field.name for field in schema if field.name not in _ONLY_PARQUET]
    write_private_csv(folder / CSV, names, ([_plain(row[name]) for name in names] for row in rows))


def renew_tables(folder: Path) -> list[Path]:
    """Write the tables of an older scan with today's columns; return where the old ones are kept.

    A risk of 0 was written where the bundle knows no urgent class, and is none. Nothing is written
    where the tables are of today. Raises UserError for a folder that holds no whole scan.
    """
    import pyarrow as pa

    summary = read_summary(folder)
    try:
        table, coco = read_parquet(folder / PARQUET), read_json(folder / COCO, _LONGEST_COCO)
        rows = table.to_pylist()
        risks = [row["urgent_risk"] for row in rows]
        if table.column_names == [name for name, _ in _columns()] and 0 not in risks:
            return []
        none = summary.no_urgent_risk or text("no_urgent_classes") * (bool(rows) and not any(risks))
        texts = {"no_urgent_risk": none, "not_known": summary.scope.text}
        for one in (*rows, *coco["annotations"]):
            one["urgent_risk"] = one["urgent_risk"] or None
        with TemporaryDirectory() as temporary:
            new = Path(temporary)
            _write_rows(new, [{**row, **texts} for row in rows], table.schema.metadata or {})
            write_private_json(new / COCO, coco)
            # Parquet is the last one: by it a scan is of today.
            contents = {name: (new / name).read_bytes() for name in (COCO, CSV, PARQUET)}
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise damaged_scan(folder, f"{type(error).__name__}: {error}") from None
    kept = [renew_private(folder / name, content) for name, content in contents.items()]
    return [old for old in kept if old]


def _columns() -> list[tuple[str, Any]]:
    import pyarrow as pa

    number, text, count = pa.float64(), pa.string(), pa.int32()
    return [
        ("rank", count), ("photo", text), ("photo_sha256", text), ("photo_number", count),
        ("x1", number), ("y1", number), ("x2", number), ("y2", number),
        ("diameter_px", number), ("diameter_mm", number), ("detector_score", number),
        ("urgent_risk", number), ("urgent", pa.bool_()), ("no_urgent_risk", text),
        ("most_likely", text), ("most_likely_probability", number),
        ("possible", pa.list_(text)), ("ood_p_value", number), ("difference", number),
        ("difference_appearance", number), ("difference_size", number),
        ("difference_colour", number), ("compared_with", count),
        ("colour_l", number), ("colour_a", number), ("colour_b", number),
        ("crop", text), ("not_known", text),
        ("probabilities", pa.list_(number)), ("embedding", pa.list_(pa.float32())),
    ]  # fmt: skip


def _row(result: ScanResult, ranked: RankedLesion, crop: str) -> dict[str, Any]:
    lesion, difference = ranked.lesion, ranked.difference
    photo = result.photos[ranked.photo]
    first, probability = result.most_likely(ranked)
    return {
        "rank": ranked.rank,
        "photo": photo.name,
        "photo_sha256": photo.sha256,
        "photo_number": ranked.photo + 1,
        "x1": lesion.box.x1,
        "y1": lesion.box.y1,
        "x2": lesion.box.x2,
        "y2": lesion.box.y2,
        "diameter_px": ranked.diameter_px,
        "diameter_mm": ranked.diameter_mm,
        "detector_score": lesion.box.score,
        "urgent_risk": lesion.urgent_risk,
        "urgent": lesion.urgent,
        "no_urgent_risk": result.no_urgent_risk,
        "most_likely": first.key,
        "most_likely_probability": probability,
        "possible": list(lesion.possible),
        "ood_p_value": lesion.ood_p_value,
        "difference": difference.score if difference else None,
        "difference_appearance": difference.appearance if difference else None,
        "difference_size": difference.size if difference else None,
        "difference_colour": difference.colour if difference else None,
        "compared_with": difference.compared_with if difference else None,
        **{f"colour_{axis}": lesion.colour_lab["lab".index(axis)] for axis in "lab"},
        "crop": crop,
        "not_known": result.scope.text,
        "probabilities": lesion.probabilities_C.tolist(),
        "embedding": lesion.embedding_D.tolist(),
    }


def _plain(value: Any) -> object:
    """Return a value for a spreadsheet, which must neither compute nor obey it."""
    if isinstance(value, list):
        value = " ".join(value)
    if isinstance(value, float):
        return round(value, 6)
    return no_formula(printable(value)) if isinstance(value, str) else value


COCO = "lesions.coco.json"


def write_coco(folder: Path, result: ScanResult) -> None:
    """Write the boxes by photo in order of rank; each has `rank` and `urgent_risk` beside."""
    by_photo: dict[str, BoxedImage] = {}
    ranked: list[RankedLesion] = []
    for place, photo in enumerate(result.photos):
        of_photo = [lesion for lesion in result.ranked if lesion.photo == place]
        boxes = tuple(lesion.lesion.box for lesion in of_photo)
        # Two photos may have one name: COCO identifies images by their numbers.
        by_photo[f"{place}/{photo.name}"] = BoxedImage(
            photo.width, photo.height, boxes, photo.sha256
        )
        ranked += of_photo
    tables = coco_json(by_photo)
    for image, photo in zip(tables["images"], result.photos, strict=True):
        image["file_name"] = photo.name
    for annotation, lesion in zip(tables["annotations"], ranked, strict=True):
        annotation["rank"] = lesion.rank
        annotation["urgent_risk"] = lesion.lesion.urgent_risk
    limits = (not_a_diagnosis(), result.no_urgent_risk, result.scope.text)
    tables["info"] = {"description": joined(*limits)}
    write_private_json(folder / COCO, tables)


LESIONS = "lesions.json"


def write_lesion_list(
    out: Path, photos: Sequence[ScannedPhoto], problems: Sequence[str], classes: Sequence[SkinClass]
) -> None:
    """Write OUT/lesions.json; `classes` are those of the probabilities."""
    keys = [skin_class.key for skin_class in classes]
    write_private_json(
        out / LESIONS,
        {
            "photos": [
                photo.facts | {"lesions": [_lesion(lesion, keys) for lesion in photo.lesions]}
                for photo in photos
            ],
            "problems": list(problems),
            "no_urgent_risk": "" if urgent_known(classes) else text("no_urgent_classes"),
            "not_known": Scope.of_classes(classes).text,
        },
    )


def _lesion(lesion: ScannedLesion, keys: Sequence[str]) -> dict[str, Any]:
    box = lesion.box
    return {
        "box": [round(corner, 2) for corner in (box.x1, box.y1, box.x2, box.y2)],
        "label": box.label,
        "score": box.score,
        "urgent_risk": lesion.urgent_risk,
        "urgent": lesion.urgent,
        "possible": list(lesion.possible),
        "probabilities": dict(zip(keys, map(float, lesion.probabilities_C), strict=True)),
        "ood_p_value": lesion.ood_p_value,
        "colour_lab": [round(part, 3) for part in lesion.colour_lab],
    }


def move(new: Path, folder: Path, last: str) -> None:
    """Move everything in `new` into `folder`, over older files and folders of the same names.

    The file `last` is removed first and comes last: while it is not there, the rest may be of two
    versions, after a kill too.
    """
    (folder / last).unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == last):
        target = folder / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)


CROPS, OVERVIEWS = "crops", "overviews"
_CROP_PX, _OVERVIEW_PX = 768, 4096
_QUALITY = 90
_ASIDE = ".results-"


def check_output(folder: Path) -> None:
    """Raise UserError where the scan would replace what no scan has written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder; give a new folder as --out.")
    for name in (CROPS, OVERVIEWS):
        for path in entries(folder / name) if (folder / name).is_dir() else ():
            if not re.fullmatch(r"\d+\.jpg", path.name):
                raise UserError(f"{path} belongs to no scan; give a new folder as --out.")


def write_scan(folder: Path, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    """Write tables, COCO, crops, overviews, page and PDF; those of an older scan are replaced.

    `reads` give the pixels of `result.photos`; no photo is held in memory as a whole. All is
    written aside and moved to its place at the end, `scan.json` last: without it a folder counts
    as no scan. Other files of the folder stay. Without fpdf2 there is no PDF. Raises UserError.
    """
    check_output(folder)
    make_private(folder)
    for left in folder.glob(f"{_ASIDE}*"):  # by a scan that was killed
        shutil.rmtree(left)
    new = folder / f"{_ASIDE}{secrets.token_hex(4)}"
    make_private(new)
    try:
        _write(new, result, reads)
        move(new, folder, SUMMARY)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write(new: Path, result: ScanResult, reads: Sequence[ReadRegion]) -> None:
    for name in (CROPS, OVERVIEWS):
        make_private(new / name)
    crops = {ranked.rank: f"{CROPS}/{ranked.rank:04d}.jpg" for ranked in result.ranked}
    for ranked in result.ranked:
        photo = result.photos[ranked.photo]
        region = region_around(ranked.lesion.box, photo.width, photo.height)
        cut_HW3 = crop(reads[ranked.photo], region, _CROP_PX)
        write_private(new / crops[ranked.rank], small_jpeg(cut_HW3, _CROP_PX, quality=_QUALITY))
    overviews = []
    for number, (photo, read) in enumerate(zip(result.photos, reads, strict=True), 1):
        pixels_HW3 = overview(read, photo.width, photo.height, _OVERVIEW_PX)
        overviews.append(f"{OVERVIEWS}/{number:02d}.jpg")
        jpeg = small_jpeg(pixels_HW3, _OVERVIEW_PX, quality=_QUALITY)
        write_private(new / overviews[-1], jpeg)
    write_tables(new, result, crops)
    write_coco(new, result)
    write_private(new / PAGE, render_scan(result, reads))
    if not missing_modules("fpdf"):
        write_private(new / PDF, pdf_bytes(result, reads))
    summary = summary_of(result, overviews, threshold_sentence(result))
    write_private_json(new / SUMMARY, summary.model_dump(mode="json"))

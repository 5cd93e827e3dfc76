"""The lesions as Parquet for programs and as CSV for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_csv
from skindx.core.text import printable
from skindx.data.publish.formats import no_formula
from skindx.scan.outputs.result import ScanResult
from skindx.scan.ranking import RankedLesion

PARQUET, CSV = "lesions.parquet", "lesions.csv"
CLASSES = b"classes"
"""Key of the schema's metadata: the classes of `probabilities`, with commas between."""
_ONLY_PARQUET = ("probabilities", "embedding")


def write_tables(folder: Path, result: ScanResult, crops: Mapping[int, str]) -> None:
    """Write both tables, a row a lesion by rank; `crops` are paths by rank.

    Each row has what the model does not know: a table is read without the page.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(result, found, crops[found.rank]) for found in result.ranked]
    keys = ",".join(one.key for one in result.classes)
    schema = pa.schema(_columns(), metadata={CLASSES: keys.encode()})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / PARQUET)
    names = [field.name for field in schema if field.name not in _ONLY_PARQUET]
    write_csv(folder / CSV, names, ([_plain(row[name]) for name in names] for row in rows))


def _columns() -> list[Any]:
    import pyarrow as pa

    number, text = pa.float64(), pa.string()
    return [
        pa.field("rank", pa.int32()),
        pa.field("photo", text),
        pa.field("photo_sha256", text),
        pa.field("photo_number", pa.int32()),
        *(pa.field(name, number) for name in ("x1", "y1", "x2", "y2")),
        pa.field("diameter_px", number),
        pa.field("diameter_mm", number),
        pa.field("detector_score", number),
        pa.field("urgent_risk", number),
        pa.field("urgent", pa.bool_()),
        pa.field("no_urgent_risk", text),
        pa.field("most_likely", text),
        pa.field("most_likely_probability", number),
        pa.field("possible", pa.list_(text)),
        pa.field("ood_p_value", number),
        pa.field("difference", number),
        pa.field("difference_appearance", number),
        pa.field("difference_size", number),
        pa.field("difference_colour", number),
        pa.field("compared_with", pa.int32()),
        *(pa.field(f"colour_{axis}", number) for axis in "lab"),
        pa.field("crop", text),
        pa.field("not_known", text),
        pa.field("probabilities", pa.list_(number)),
        pa.field("embedding", pa.list_(pa.float32())),
    ]


def _row(result: ScanResult, found: RankedLesion, crop: str) -> dict[str, Any]:
    lesion, difference = found.lesion, found.difference
    photo = result.photos[found.photo]
    first, probability = result.most_likely(found)
    return {
        "rank": found.rank,
        "photo": photo.name,
        "photo_sha256": photo.sha256,
        "photo_number": found.photo + 1,
        "x1": lesion.box.x1,
        "y1": lesion.box.y1,
        "x2": lesion.box.x2,
        "y2": lesion.box.y2,
        "diameter_px": found.diameter_px,
        "diameter_mm": found.diameter_mm,
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
        "compared_with": difference.others if difference else None,
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

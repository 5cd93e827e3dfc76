"""The manifest: one row an image, from which everything else is derived; and its pixels."""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError, instead_of
from skindx.data.box import Box
from skindx.data.layout import ISSUES, MANIFEST, SUMMARY, is_inside, recover, stored_file
from skindx.data.typed_rows import Float32, Int8, Int32, arrow_schema, only_once, rows_of
from skindx.imaging.stored_colours import AS_STORED, SRGB, Decoding

if TYPE_CHECKING:  # numpy: not for a crawl, which reads recipes
    import numpy as np
    from numpy.typing import NDArray
from collections import Counter
from collections.abc import Mapping

Split = Literal["train", "val", "calibration", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_ROW_GROUP = 20_000
MOST_SUMMARY = 256 << 20
"""Bytes of summary.json."""


@dataclass(frozen=True, slots=True)
class Record:
    """One kept image. `path` is relative to the dataset folder, hashes are hexadecimal."""

    path: str
    sha256: str
    perceptual_hash: str
    width: Int32
    height: Int32
    label: str
    group: str
    split: Split
    boxes: tuple[Box, ...] | None = None
    """Boxes of the lesions; None: not reviewed for boxes; (): reviewed, and there is none."""
    source: str = ""
    source_url: str = ""
    page_url: str = ""
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    retrieved: str = ""
    """UTC, ISO 8601."""
    skin_type: Int8 | None = None
    """Fitzpatrick 1..6, where a person said so."""
    fold: Int8 | None = None
    """0 .. folds - 1 outside calibration and test; None there, and where folds are switched off."""
    caption: str = ""
    """The source's text about it, such as age and site. May name a person: not published."""
    confirmed_by: str = ""
    """How the source says that the label was confirmed, such as histopathology; "": not at all."""
    age: Float32 | None = None
    """Years at the time of the image. Like sex and site it is about a person: not published."""
    sex: str = ""
    """female, male or other; "": not known."""
    site: str = ""
    """Place on the body; "": not known."""
    laterality: str = ""
    """left, right, both sides or unpaired; "": not known."""
    answers: str = ""
    """What was asked about the lesion, such as `grew=yes itches=no`; "": nothing. Not published."""
    modality: str = ""
    """dermoscopic or clinical, where the image's own header says so."""
    patient: str = ""
    """This and `study`: codes of ids under a key, where the source has them; not published."""
    study: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One image that did not enter the dataset, and why."""

    url: str
    """Source URL or path of the image."""
    sha256: str
    label: str
    reason: str
    """A fixed short word: dead-link, not-a-picture, exact-duplicate, near-duplicate …"""
    detail: str = ""
    kept_sha256: str = ""
    """SHA-256 of the image that stays in the place of a duplicate."""


def write_manifest(folder: Path, records: Sequence[Record]) -> None:
    write_table(folder / MANIFEST, records, Record)


def read_manifest(folder: Path) -> list[Record]:
    """Read a dataset folder's manifest. Raises UserError when it is absent or not a manifest."""
    mend = "delete it and run `skindx build` again, which keeps the splits of splits.csv"
    rows = read_rows(folder / MANIFEST, Record, "run `skindx build` first", mend, key="sha256")
    for row in rows:
        check_row(folder, row)
        if row.get("skin_type") not in (None, *range(1, 7)) or min(row["width"], row["height"]) < 1:
            raise UserError(
                f"{folder / MANIFEST} has an image of {row['width']} x {row['height']} pixels "
                f"with the skin type {row.get('skin_type')}, but sizes must be positive and skin "
                f"types 1 to 6; {mend}."
            )
    return [Record(**row) for row in rows]


def check_row(folder: Path, row: dict[str, Any]) -> None:
    """Raise UserError for a row whose path or split would lead out of its folder, or nowhere."""
    path, name = row["path"], row.get("file_name", "")
    if (path and not is_inside(path)) or "/" in name:
        raise UserError(
            f"{folder / MANIFEST} names the file {(name or path)[:200]!r}, which lies outside its "
            "folder and may be malicious; do not use this dataset."
        )
    if row["split"] not in SPLITS:
        raise UserError(
            f"{folder / MANIFEST} has an image in the unknown split {str(row['split'])[:80]!r} "
            f"(valid: {', '.join(SPLITS)}); run `skindx build` again."
        )


def split_of(records: Iterable[Record], split: Split) -> list[Record]:
    return [record for record in records if record.split == split]


def write_issues(folder: Path, issues: Iterable[Issue]) -> None:
    write_table(folder / ISSUES, issues, Issue)


def write_table(path: Path, rows: Iterable[object], row_type: type) -> None:
    """Write dataclasses as a Parquet table, atomically; its columns are the fields of `row_type`.

    In groups, so that no second copy of all of them is ever in memory.
    """
    import pyarrow.parquet as pq

    left, schema = iter(rows), arrow_schema(row_type)
    with atomic_file(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        while group := list(itertools.islice(left, _ROW_GROUP)):
            writer.write_table(table_of(group, schema))


def table_of(rows: Sequence[object], schema: Any) -> Any:
    """Return an Arrow table of dataclasses; its columns are those fields that `schema` names.

    A reviewer waits for it at every save, so it goes by columns: a dictionary a row and a box, as
    `dataclasses.asdict` makes them, takes five times as long.
    """
    import pyarrow as pa

    columns = {name: list(map(attrgetter(name), rows)) for name in schema.names}
    if "boxes" in columns:
        columns["boxes"] = _boxes_array(columns["boxes"], schema.field("boxes").type)
    return pa.table(columns, schema=schema)


def _boxes_array(column: Sequence[Sequence[Box] | None], boxes_type: Any) -> Any:
    """Return a column of boxes, None among them, as Arrow has it."""
    import pyarrow as pa

    kind = boxes_type.value_type
    flat = [box for boxes in column for box in boxes or ()]
    parts = [pa.array([getattr(box, field.name) for box in flat], field.type) for field in kind]
    ends = list(itertools.accumulate((len(boxes or ()) for boxes in column), initial=0))
    starts = [None if boxes is None else at for boxes, at in zip(column, ends, strict=False)]
    offsets = pa.array([*starts, ends[-1]], pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays(parts, fields=list(kind)), type=boxes_type
    )


def read_issues(folder: Path) -> list[Issue]:
    """Read a dataset folder's issues table. Raises UserError when it is absent."""
    return [Issue(**row) for row in read_rows(folder / ISSUES, Issue, "run `skindx build`")]


def read_rows(
    path: Path, row_type: type, advice: str, mend: str = "", *, key: str = ""
) -> list[dict[str, Any]]:
    """Read a Parquet table whose columns are the fields of a dataclass. Raises UserError.

    `advice` says what to do where it is absent, and `mend` what where it is damaged. No two rows
    have the same `key`.

    A column may be missing, as in a table of an older version, when its field has a default.
    """
    import pyarrow as pa

    recover(path.parent)
    if not path.exists():
        advice = instead_of(path.parent, "data") or advice
        raise UserError(f"{path} does not exist, so {path.parent} is not a dataset; {advice}.")
    try:
        rows = rows_of(path, row_type)
        if key:
            only_once(rows, key)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read ({detail}); {mend or advice}.") from None
    return rows


class StoredImage(Protocol):
    """What has a path relative to its dataset folder: a manifest's record, for one."""

    @property
    def path(self) -> str: ...


def decoding_of(dataset: Path) -> Decoding:
    """Return the colours that a dataset's pixels have, as its summary names them.

    As stored in one that an older version built, so that its images stay those that it was
    measured and trained on. Raises UserError for what a newer version names.
    """
    file = dataset / SUMMARY
    try:
        written = file.stat()
    except OSError:
        return SRGB
    return _decoding(file, written.st_mtime_ns, written.st_size)


@lru_cache(maxsize=16)
def _decoding(file: Path, time_ns: int, size: int) -> Decoding:
    try:
        named = json.loads(file.read_bytes()).get("decoding", AS_STORED)
    except (OSError, ValueError, AttributeError, RecursionError):
        return SRGB  # who needs the summary says what is wrong with it
    if named not in get_args(Decoding):
        raise UserError(
            f"{file} has `decoding: {str(named)[:40]!r}`, which this version of skindx does not "
            f"know (valid: {', '.join(get_args(Decoding))}); update skindx, or run `skindx build` "
            "again."
        )
    decoding: Decoding = named
    return decoding


def read_image(dataset: Path, record: StoredImage) -> "NDArray[np.uint8]":
    """Return an image's pixels_HWC. Raises UserError for one that is gone, damaged or too slow."""
    from skindx.imaging.sandboxed_images import decode_limited

    file = stored_file(dataset, record.path)
    try:
        return decode_limited(file.read_bytes(), decoding=decoding_of(dataset))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); run `skindx build` again.") from None


_SAMPLE = 64


def check_sample(dataset: Path, records: Sequence[Record]) -> None:
    """Compare some images, others at each call, with the hashes that the manifest has of them.

    Raises UserError for one that is gone, or was changed after the build.
    """
    for record in random.sample(records, min(_SAMPLE, len(records))):
        file = stored_file(dataset, record.path)
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error}); run `skindx build` again.") from None
        if digest != record.sha256:
            raise changed(file, f"its SHA-256 begins with {digest[:8]}, not {record.sha256[:8]}")


def check_size(
    record: Record, pixels_HWC: "NDArray[np.uint8]", file: Callable[[], Path], *, scaled: bool
) -> None:
    """Raise UserError, which names the `file`, for an image of another size than the manifest's.

    One that is `scaled` may be of n / 8 of it, as libjpeg-turbo makes it.
    """
    height, width = pixels_HWC.shape[:2]
    for eighths in range(8, 0 if scaled else 7, -1):
        if height == -(-record.height * eighths // 8) and width == -(-record.width * eighths // 8):
            return
    raise UserError(
        f"the image {file()} has {width} x {height} pixels, but the manifest says {record.width} "
        f"x {record.height}, so the file was changed after the build; restore the file, or run "
        "`skindx build` again."
    )


def changed(file: Path, how: str) -> UserError:
    """Return the error of an image that is not the one that the manifest describes."""
    return UserError(
        f"{file} was changed after the build ({how}), so its label and boxes may be wrong; "
        "restore the file, or run `skindx build` again."
    )


def image_facts(record: Record) -> list[tuple[str, str]]:
    """Return what the manifest says of an image, as names and values."""
    boxes = record.boxes
    facts = {
        "size": f"{record.width} × {record.height}",
        "licence": record.licence or "unknown",
        "by": record.creator,
        "credit": record.attribution,
        "confirmed by": record.confirmed_by,
        "caption": record.caption,
        "skin type": "" if record.skin_type is None else str(record.skin_type),
        "age": "" if record.age is None else f"{record.age:g}",
        "sex": record.sex,
        "site": record.site,
        "asked": record.answers,
        "fold": "" if record.fold is None else str(record.fold),
        "group": "" if record.group == record.sha256 else record.group,
        "boxes": "" if boxes is None else str(len(boxes)) if boxes else "looked, none",
    }
    return [(name, value) for name, value in facts.items() if value]


UNKNOWN = "not known"
REST = "others"
SKIN_TYPES = ("I", "II", "III", "IV", "V", "VI")
_MOST = 20
"""Values that are counted by name; of more, such as one address an image, the rest is one."""

COUNTED = {
    "label": "class",
    "skin_type": "skin type",
    "age": "age",
    "sex": "sex",
    "site": "site",
    "confirmed_by": "label confirmed by",
    "source": "source",
    "licence": "licence",
}
"""Fields of a record that are counted, and what they are called."""


def count_images(records: Sequence[Record]) -> dict[str, Any]:
    """Return `images`, `groups`, and for each field its values' images; the unknown are counted.

    Values stand by falling count, `not known` last; ages are bands of twenty years.
    """
    counts: dict[str, Any] = {
        "images": len(records),
        "groups": len({record.group for record in records}),
    }
    for field in COUNTED:
        values = (_value(field, getattr(record, field)) for record in records)
        counts[field] = _by_count(values)
    return counts


def _value(field: str, value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if field == "skin_type":
        return SKIN_TYPES[value - 1]
    if field == "age":
        low = min(int(value) // 20 * 20, 80)
        return f"{low} and more" if low == 80 else f"{low} to {low + 19}"
    return str(value)


def _by_count(values: Iterable[str]) -> dict[str, int]:
    ranked = Counter(values).most_common()
    known = [(value, n) for value, n in ranked if value != UNKNOWN]
    kept, rest = known[:_MOST], sum(n for _, n in known[_MOST:])
    unknown = dict(ranked).get(UNKNOWN, 0)
    return dict(kept) | ({REST: rest} if rest else {}) | ({UNKNOWN: unknown} if unknown else {})


def counts_text(counts: Mapping[str, int]) -> str:
    """Write counts as a list: 'II 30, IV 4, not known 7'."""
    return ", ".join(f"{value} {n:,}" for value, n in counts.items())


def box_labels(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(sorted({box.label for record in records for box in record.boxes or ()}))

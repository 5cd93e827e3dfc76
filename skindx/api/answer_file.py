"""Answers about many photos as they come, in a part file that a kill leaves, and whole as a table.

The part file stands beside the output, `answers.csv.part`: JSON lines, the first of which says by
which bundle and of which photos it is. All of it is health data, so only its user may read it.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skindx.api import predictions
from skindx.core.atomic_files import only_writer, sha256_file
from skindx.core.errors import UserError, needs_room
from skindx.core.private_files import make_private, open_private, private_file
from skindx.core.progress import Progress
from skindx.core.text import counted, printable
from skindx.data.tables.cells import no_formula
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.photo_list import FILE, ListedPhoto, PhotoList
from skindx.texts.catalogue import LANGUAGE, spoken

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv", ".parquet", ".jsonl")
PRIVATE = 0o600
_ROWS = 1000
"""Rows of a Parquet file that are in memory at once."""
_SEEN = "_seen"
"""Key of a part file's row: size and time of the photo's file when it was answered."""
_FORMAT = "skindx_answers"

Row = dict[str, Any]


def check_output(out: Path) -> Path:
    """Return the part file of an output. Raises UserError for an output that cannot be begun."""
    part = out.with_name(f"{out.name}.part")
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"--out {out} must end in {', '.join(SUFFIXES)}; give a name with one of these endings."
        )
    if out.is_dir() or (out.exists() and not part.exists()):
        raise UserError(
            f"{out} already exists and would be overwritten; delete it, or give another --out."
        )
    return part


@dataclass
class AnswerPart:
    """Rows written so far; open it with `open_part`."""

    file: IO[bytes]
    places: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """Row offset and state of the file (as `_state` returns it), by name of answered photo."""

    def lacks(self, photo: ListedPhoto) -> bool:
        """Tell whether a photo has no row, or its file was changed since."""
        return photo.name not in self.places or self.places[photo.name][1] != _state(photo.path)

    def add(self, photos: Iterable[ListedPhoto], rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows of photos, which stay whatever comes."""
        for photo, row in zip(photos, rows, strict=True):
            state = _state(photo.path)
            line = json.dumps({**row, FILE: photo.name, _SEEN: state})
            self.places[photo.name] = (self.file.seek(0, os.SEEK_END), state)
            self.file.write(f"{line}\n".encode())
        self.file.flush()
        os.fsync(self.file.fileno())

    def rows(self, photos: Iterable[ListedPhoto]) -> Iterator[Row]:
        """Yield the rows of photos, which have one each; a name that is no text is made some."""
        for photo in photos:
            self.file.seek(self.places[photo.name][0])
            row = json.loads(self.file.readline())
            del row[_SEEN]
            yield row | {FILE: os.fsencode(photo.name).decode(errors="replace")}


@contextmanager
def open_part(path: Path, origin: Mapping[str, Any]) -> Iterator[AnswerPart]:
    """Yield the answers that a part file has; it is begun where there is none.

    `origin` is what the answers depend on, by words for a reader. Raises UserError for a part file
    of another origin, for a damaged one, and while another process writes it.
    """
    make_private(path.parent)
    with needs_room(path.parent):
        os.close(open_private(path))
        with only_writer(path, "diagnosis", wait_s=0), path.open("r+b") as file:
            part = AnswerPart(file)
            _read(path, part, json.loads(json.dumps({_FORMAT: 1, **origin})))
            yield part


def _read(path: Path, part: AnswerPart, origin: Mapping[str, Any]) -> None:
    """Take the rows of a part file; the last line that a kill cut short goes."""
    end, place = 0, 0
    for number, line in enumerate(part.file):
        place, end = end, end + len(line)
        if not line.endswith(b"\n"):
            end = place
            break
        try:
            row = json.loads(line)
            if number == 0:
                before = dict(row)
            else:
                part.places[row[FILE]] = (place, row[_SEEN])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UserError(
                f"line {number + 1} of {path} is damaged; delete this file and run the same "
                "command again, which answers all photos from the beginning."
            ) from None
        if number == 0 and before != origin:
            raise UserError(_other(path, before, origin))
    part.file.truncate(end)
    if end == 0:
        part.file.write(f"{json.dumps(origin)}\n".encode())
        part.file.flush()


def _other(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if before.get(_FORMAT) != now[_FORMAT] or before.keys() != now.keys():
        return f"{path} was begun by another version of skindx; delete it, or give another --out."
    changed = " and ".join(key for key in now if before[key] != now[key])
    return (
        f"{path} was begun with another {changed}; give the same one to go on, another --out to "
        "begin anew, or delete the file."
    )


def _state(path: Path) -> list[int]:
    try:
        facts = path.stat()
    except OSError:
        return []
    return [facts.st_size, facts.st_mtime_ns]


def write_table(out: Path, schema: "pa.Schema", rows: Iterable[Row]) -> None:
    """Write rows as the kind of table that the name of `out` says, whole or not at all."""
    writers = {".csv": _write_csv, ".parquet": _write_parquet, ".jsonl": _write_jsonl}
    with needs_room(out.parent), private_file(out) as temporary:
        writers[out.suffix.lower()](temporary, schema, rows)


def csv_cells(row: Mapping[str, Any], columns: Iterable[str]) -> list[object]:
    """Return a row's cells: lists joined by `;`, and no text that a spreadsheet would compute."""
    return [_cell(row.get(name)) for name in columns]


def _cell(value: object) -> object:
    if isinstance(value, list | tuple):
        value = ";".join(map(str, value))
    return no_formula(printable(value)) if isinstance(value, str) else value


def _write_csv(path: Path, schema: "pa.Schema", rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(schema.names)
        table.writerows(csv_cells(row, schema.names) for row in rows)


def _write_jsonl(path: Path, schema: "pa.Schema", rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            ordered = {name: row.get(name) for name in schema.names}
            file.write(json.dumps(ordered, ensure_ascii=False) + "\n")


def _write_parquet(path: Path, schema: "pa.Schema", rows: Iterable[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema) as file:
        remaining = iter(rows)
        while some := list(islice(remaining, _ROWS)):
            file.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))


KINDS = {
    "urgent": "urgent",
    "soon": "soon",
    "unknown": "no urgency given",
    "routine": "routine",
    "refused": "refused",
}
"""What answers are, in the order of a page."""


@dataclass
class AnswerCounts:
    """Number of answers of each kind."""

    kinds: Counter[str]
    gates: Counter[str]
    """Number of refused photos by the gate that refused them."""
    abstained: int = 0
    total: int = 0

    @classmethod
    def count(cls, rows: Iterable[Row]) -> "AnswerCounts":
        """Count rows."""
        counts = cls(Counter(), Counter())
        for row in rows:
            counts.total += 1
            counts.kinds[kind_of(row)] += 1
            counts.abstained += bool(row["abstained"])
            if row["refused"]:
                counts.gates[row["refused"]] += 1
        return counts

    @property
    def text(self) -> str:
        """The counts in one sentence."""
        parts = [f"{self.kinds[kind]:,} {name}" for kind, name in KINDS.items()]
        gates = ", ".join(f"{gate} {count:,}" for gate, count in self.gates.most_common())
        unsure = f"; {self.abstained:,} of them not sure" if self.abstained else ""
        return (
            f"{counted(self.total, 'photo')}: {', '.join(parts[:-1])}{unsure}; {parts[-1]}"
            f"{f' ({gates})' if gates else ''}."
        )


def kind_of(row: Row) -> str:
    """Return the urgency of an answer's next step, or `refused`."""
    return "refused" if row["refused"] else str(row["urgency"])


if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


def answer_photos(
    listed: PhotoList,
    predictor: "Predictor",
    out: Path,
    *,
    page: Callable[[AnswerPart, AnswerCounts], None] | None = None,
    write: Callable[..., object] = write_table,
    prevalence: Path | None = None,
    progress: Progress,
) -> AnswerCounts:
    """`write` the answers about listed photos to `out`, and let `page` summarise them.

    What an earlier run of the same arguments answered is not answered again. `prevalence` is the
    file that the predictor was loaded with. Raises UserError, after which the same command goes on.
    """
    schema = predictions.schema_of(predictor)
    part_path = check_output(out)
    origin = {
        "bundle": bundle_version(predictor.bundle),
        "folder or table": str(listed.source.resolve()),
        "version of the table": listed.digest,
        "miss rate": predictor.miss_rate,
        "prevalence": sha256_file(prevalence) if prevalence else "",
        "set of columns": [str(column) for column in schema],
        **({} if spoken() == LANGUAGE else {"language": spoken()}),
    }
    photos = listed.photos
    with open_part(part_path, origin) as part:
        waiting = [photo for photo in photos if part.lacks(photo)]
        before, at = len(photos) - len(waiting), 0
        progress("photos", before, len(photos))
        batches = predictions.iter_predictions(
            predictor,
            [photo.path for photo in waiting],
            facts=[photo.patient.model_dump(exclude_defaults=True) for photo in waiting],
        )
        for batch in batches:
            rows = batch.to_pylist()
            part.add(waiting[at : at + len(rows)], rows)
            at += len(rows)
            progress("photos", before + at, len(photos))
        write(out, schema, part.rows(photos))
        counts = AnswerCounts.count(part.rows(photos))
        if page is not None:
            page(part, counts)
        part_path.unlink()
    return counts

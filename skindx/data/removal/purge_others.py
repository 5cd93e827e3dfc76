"""Takes images out of the tables of a dataset folder that a take-down does not know by name.

Flags, decisions, splits, annotations, embeddings, pairs of copies, the audit's journal, and all
other files there: tables with a column sha256 (or sha256_a and sha256_b, of which each row
goes that names the image on either side), and JSON lines that hold one.
"""

import csv
import io
import re
from collections.abc import Collection
from pathlib import Path

from skindx.core.atomic_files import read_parquet
from skindx.core.errors import UserError

_SHA256 = re.compile("[0-9a-f]{64}")
_COLUMNS = ("sha256", "sha256_a", "sha256_b")


def purge_others(
    dataset: Path, staging: Path, sha256s: Collection[str], own: Collection[Path]
) -> None:
    """Write those tables of `dataset` that lose rows to `staging`, but for `own`.

    Raises UserError for a table that cannot be read: whom it names is unknown.
    """
    tables = {path for kind in _KINDS for path in dataset.glob(f"*{kind}")} - set(own)
    for path in sorted(tables):
        _KINDS[path.suffix](path, staging, sha256s)


def _csv(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    try:
        rows = list(csv.reader(io.StringIO(_text(path), newline="")))
    except csv.Error as error:
        raise _unreadable(path, error) from None
    columns = [at for at, name in enumerate(rows[0]) if name in _COLUMNS] if rows else []
    if not columns:
        return
    staying = [
        row
        for row in rows
        if not any((row[at:] or [""])[0].strip().lower() in sha256s for at in columns)
    ]
    if len(staying) < len(rows):
        with (staging / path.name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(staying)


def _parquet(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        columns = [name for name in pq.read_schema(path).names if name in _COLUMNS]
        if not columns:
            return
        table, wanted = read_parquet(path), pa.array(sorted(sha256s), pa.string())
        staying = table
        for name in columns:
            gone = pc.is_in(staying[name].cast(pa.string()), value_set=wanted)
            staying = staying.filter(pc.invert(gone))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    if len(staying) < len(table):
        pq.write_table(staying, staging / path.name)


def _jsonl(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    lines = _text(path).split("\n")
    staying = [
        line for line in lines if not any(sha256 in sha256s for sha256 in _SHA256.findall(line))
    ]
    if len(staying) < len(lines):
        (staging / path.name).write_text("\n".join(staying), encoding="utf-8")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read ({error}); correct or delete it.")


_KINDS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}

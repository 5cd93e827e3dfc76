"""Takes images out of the tables of a dataset folder that a take-down does not know by name.

Flags, decisions, splits, annotations, embeddings, the audit's journal, whatever else somebody
put there: tables with a column sha256, and JSON lines that hold one.
"""

import csv
import io
import re
from collections.abc import Collection
from pathlib import Path

from skindx.errors import UserError

_SHA256 = re.compile("[0-9a-f]{64}")


def purge_others(
    dataset: Path, staging: Path, sha256s: Collection[str], own: Collection[Path]
) -> None:
    """Write those tables of `dataset` that lose rows to `staging`, but for `own`.

    Raises UserError for a table that cannot be read: nobody knows whom it names.
    """
    tables = {path for kind in _KINDS for path in dataset.glob(f"*{kind}")} - set(own)
    for path in sorted(tables):
        _KINDS[path.suffix](path, staging, sha256s)


def _csv(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    try:
        rows = list(csv.reader(io.StringIO(_text(path), newline="")))
    except csv.Error as error:
        raise _unreadable(path, error) from None
    if not rows or "sha256" not in rows[0]:
        return
    column = rows[0].index("sha256")
    staying = [row for row in rows if (row[column:] or [""])[0].strip().lower() not in sha256s]
    if len(staying) < len(rows):
        with (staging / path.name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(staying)


def _parquet(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        if "sha256" not in pq.read_schema(path).names:
            return
        table = pq.read_table(path)
        gone = pc.is_in(
            table["sha256"].cast(pa.string()), value_set=pa.array(sorted(sha256s), pa.string())
        )
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    if pc.any(gone).as_py():
        pq.write_table(table.filter(pc.invert(gone)), staging / path.name)


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

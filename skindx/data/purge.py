"""Takes blocked pictures out of a dataset folder: out of every table, the ledger and the store.

Each step takes out whatever of the block list it still finds, so a purge that was killed is
finished by the next one, and a second one changes nothing.
"""

import csv
import dataclasses
import io
import json
import shutil
from collections.abc import Collection
from pathlib import Path

from skindx.data.blocklist import (
    TAKEN_DOWN,
    Blocked,
    BlockList,
    withheld,
)
from skindx.data.dataset_folder import CACHE, SUMMARY
from skindx.data.ledger import LEDGER, held_ledger, read_lines, row_of
from skindx.data.manifest import (
    ISSUES,
    MANIFEST,
    Issue,
    read_issues,
    read_manifest,
    write_issues,
    write_manifest,
)
from skindx.data.store import STORE
from skindx.data.summary import totals
from skindx.data.switch import settle, together
from skindx.errors import UserError
from skindx.files import sha256_file, write_csv, write_json


def purge(dataset: Path, blocked: BlockList) -> int:
    """Take `blocked` out of `dataset`; return the number of store files deleted.

    The loader's cache goes first, then the tables change together, then the bytes go. The row of
    a picture stays in the issues table and in the ledger, without its creator. Only for who holds
    `only_writer`. Raises UserError.
    """
    settle(dataset)
    if _held(dataset, blocked):
        shutil.rmtree(dataset / CACHE, ignore_errors=True)
    if (dataset / LEDGER).exists():
        with held_ledger(dataset):
            _purge_tables(dataset, blocked)
    else:
        _purge_tables(dataset, blocked)
    files = [file for sha256 in blocked.by_sha for file in store_files(dataset, sha256)]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def _held(dataset: Path, blocked: BlockList) -> bool:
    if any(store_files(dataset, sha256) for sha256 in blocked.by_sha):
        return True
    if not (dataset / MANIFEST).exists():
        return False
    return any(blocked.find(each.sha256, each.source_url) for each in read_manifest(dataset))


def store_files(dataset: Path, sha256: str) -> list[Path]:
    """Return the files of one picture in a dataset's store: one, or none."""
    return list((dataset / STORE / sha256[:2]).glob(f"{sha256}.*"))


def _purge_tables(dataset: Path, blocked: BlockList) -> None:
    with together(dataset) as staging:
        if (dataset / MANIFEST).exists() and (dataset / ISSUES).exists():
            _purge_manifest(dataset, staging, blocked)
        if (dataset / LEDGER).exists():
            _purge_ledger(dataset, staging, blocked)
        others = {*dataset.glob("*.csv"), *dataset.glob("*.parquet")}
        for path in sorted(others - {dataset / MANIFEST, dataset / ISSUES}):
            _purge_table(path, staging, blocked.by_sha)


def _purge_manifest(dataset: Path, staging: Path, blocked: BlockList) -> None:
    records, issues = read_manifest(dataset), read_issues(dataset)
    kept, rows = [], []
    for record in records:
        entry = blocked.find(record.sha256, record.source_url)
        if entry:
            rows.append(taken_down(record.source_url, record.label, entry))
        else:
            kept.append(record)
    for issue in issues:
        entry = blocked.find(issue.sha256, issue.url)
        if entry:
            rows.append(taken_down(issue.url, issue.label, entry))
        elif issue.kept_sha256 in blocked.by_sha:
            rows.append(dataclasses.replace(issue, kept_sha256=""))
        else:
            rows.append(issue)
    if kept == records and rows == issues:
        return
    write_issues(staging, rows)
    write_manifest(staging, kept)
    if (dataset / SUMMARY).exists():
        summary = json.loads((dataset / SUMMARY).read_text(encoding="utf-8"))
        earlier = summary.get("earlier_manifests", [])
        summary["earlier_manifests"] = [*earlier, sha256_file(dataset / MANIFEST)]
        write_json(staging / SUMMARY, summary | totals(kept, rows))


def taken_down(url: str, label: str, entry: Blocked) -> Issue:
    """Return the row that stays of a picture in the issues table."""
    return Issue(url, entry.sha256, label, TAKEN_DOWN, entry.detail)


def _purge_ledger(dataset: Path, staging: Path, blocked: BlockList) -> None:
    lines, changed = [], False
    for line in read_lines(dataset)[0]:
        row = row_of(line)
        entry = blocked.find(row.sha256, row.url) if row else None
        if row and entry:
            clean = dataclasses.asdict(withheld(row, entry))
            changed |= clean != line
            lines.append(clean)
        else:
            lines.append(line)
    if changed:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (staging / LEDGER).write_text(text, encoding="utf-8")


def _purge_table(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    """Drop the rows of these pictures from any other table that has a column sha256."""
    if path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(_text(path), newline="")))
        if not rows or "sha256" not in rows[0]:
            return
        column = rows[0].index("sha256")
        staying = [row for row in rows if (row[column:] or [""])[0].strip() not in sha256s]
        if len(staying) < len(rows):
            write_csv(staging / path.name, staying[0], staying[1:])
        return
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if "sha256" not in pq.read_schema(path).names:
        return
    table = pq.read_table(path)
    gone = pc.is_in(table["sha256"], value_set=pa.array(sorted(sha256s), pa.string()))
    if pc.any(gone).as_py():
        pq.write_table(table.filter(pc.invert(gone)), staging / path.name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); correct or delete it.") from None

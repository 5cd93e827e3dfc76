"""Takes blocked images out of a dataset folder: every table, the ledger, reports and the store.

What stays is that they were taken down: their SHA-256 and URL in the ledger, in the issues table
and in the block list, and the SHA-256 where it is the name of a group that others belong to. Each
step takes out whatever of the block list it still finds, so a purge that was killed is finished by
the next one, and a second one changes nothing.

Tables that are not known by name (flags, decisions, splits, annotations, embeddings, pairs of
copies, the audit's journal, and all other files there) lose their rows too: tables with a column
sha256 (or sha256_a and sha256_b, of which each row goes that names the image on either side), and
JSON lines that hold one.
"""

import csv
import dataclasses
import json
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from skindx.core.atomic_files import entries, leftovers, read_parquet, sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.data.answer_log import held_answers
from skindx.data.blocklist import TAKEN_DOWN, Blocked, BlockList, withheld
from skindx.data.copies.verified import keep_stored
from skindx.data.decisions import read_flags
from skindx.data.layout import (
    BLOCKLIST,
    CACHE,
    DIFF,
    GALLERY,
    ISSUES,
    LABEL_REVIEW,
    LEDGER,
    LOG,
    MANIFEST,
    PAGES,
    REPORT,
    SUMMARY,
    recover,
    store_files,
    transaction,
)
from skindx.data.ledger import file_name, held_ledger, read_lines, row_of
from skindx.data.manifest import (
    MOST_SUMMARY,
    Issue,
    read_issues,
    read_manifest,
    write_issues,
    write_manifest,
)
from skindx.data.screening.screen import remove_shards
from skindx.data.summary import count_flagged, recounted, totals
from skindx.data.tables.text_files import open_text, separated

_SHA256 = re.compile("[0-9a-f]{64}")
_COLUMNS = ("sha256", "sha256_a", "sha256_b")


def purge_other_tables(
    dataset: Path, staging: Path, sha256s: Collection[str], known: Collection[Path]
) -> None:
    """Write those tables of `dataset` that lose rows to `staging`, but for those `known` by name.

    Raises UserError for a table that cannot be read: whom it names is unknown.
    """
    tables = {path for path in entries(dataset) if path.suffix in _KINDS} - set(known)
    for path in sorted(tables):
        _KINDS[path.suffix](path, staging, sha256s)


def _csv(path: Path, staging: Path, sha256s: Collection[str]) -> None:
    try:
        with open_text(path) as (file, encoding):
            numbered, sign = separated(file, _COLUMNS, strict=False)
            rows = [row for _, row in numbered]
    except (OSError, csv.Error) as error:
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
        with (staging / path.name).open(
            "w", newline="", encoding=encoding.removesuffix("-sig")
        ) as out:
            csv.writer(out, delimiter=sign, lineterminator="\n").writerows(staying)


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
    return UserError(
        f"{path} cannot be read ({error}); restore or delete it, and run the same command again."
    )


_KINDS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


_REPORTS = (REPORT, LABEL_REVIEW, DIFF, LOG)
"""What verbs leave in a dataset folder beside its tables, and can write again."""


def purge(dataset: Path, blocked: BlockList) -> int:
    """Take `blocked` out of `dataset`; return the number of store files deleted.

    What can be made again goes first (caches, reports, an older version's gallery), then the tables
    change together, then the bytes go. The row of an image stays in the issues table and in the
    ledger, without its creator. Only for who holds `only_writer`. Raises UserError.
    """
    recover(dataset)
    if _held(dataset, blocked):
        _remove_derived(dataset, blocked)
    if (dataset / LEDGER).exists():
        with held_ledger(dataset):
            _purge_tables(dataset, blocked)
    else:
        _purge_tables(dataset, blocked)
    files = [file for sha256 in blocked.by_sha for file in store_files(dataset, sha256)]
    for file in files:
        file.unlink(missing_ok=True)
    keep_stored(dataset)
    return len(files)


def _held(dataset: Path, blocked: BlockList) -> bool:
    if any(store_files(dataset, sha256) for sha256 in blocked.by_sha):
        return True
    if not (dataset / MANIFEST).exists():
        return False
    return any(blocked.find(record.sha256, record.source_url) for record in read_manifest(dataset))


def _remove_derived(dataset: Path, blocked: BlockList) -> None:
    shutil.rmtree(dataset / CACHE, ignore_errors=True)
    for folder in (PAGES, ".parts"):  # they name who made the images; 0.2 crawled in parts
        shutil.rmtree(dataset / folder, ignore_errors=True)
    remove_shards(dataset)
    gallery = dataset / GALLERY
    if (gallery / "gallery.json").is_file():
        shutil.rmtree(gallery)
    # Half-written files that killed processes left may hold anything.
    left = (*leftovers(gallery), *dataset.glob("*.tmp-*"), *(dataset / name for name in _REPORTS))
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _purge_tables(dataset: Path, blocked: BlockList) -> None:
    with held_answers(dataset), transaction(dataset) as staging:
        if (dataset / MANIFEST).exists() and (dataset / ISSUES).exists():
            _purge_manifest(dataset, staging, blocked)
        if (dataset / LEDGER).exists():
            _purge_ledger(dataset, staging, blocked)
        known = {dataset / name for name in (MANIFEST, ISSUES, LEDGER, BLOCKLIST)}
        purge_other_tables(dataset, staging, blocked.by_sha, known)


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
            # The sentence names the URL of what it was a duplicate of.
            rows.append(dataclasses.replace(issue, detail="", kept_sha256=""))
        else:
            rows.append(issue)
    if kept == records and rows == issues:
        return
    write_issues(staging, rows)
    write_manifest(staging, kept)
    if (dataset / SUMMARY).exists():
        summary = read_json(dataset / SUMMARY, MOST_SUMMARY, finite=False)
        summary["notes"] = _without(summary.get("notes", []), rows)
        for finding in (summary.get("boxes") or {}).get("findings", ()):
            finding["first"] = _without(finding["first"], rows)
        earlier = summary.get("earlier_manifests", [])
        summary["earlier_manifests"] = [*earlier, sha256_file(dataset / MANIFEST)]
        summary["funnel"] = recounted(summary.get("funnel", []), kept)
        if "flagged" in summary:
            staying = {record.sha256 for record in kept}
            flags = [flag for flag in read_flags(dataset) if flag.sha256 in staying]
            summary["flagged"] = {
                reason: count
                for reason, count in count_flagged(flags).items()
                if reason in summary["flagged"]
            }
        write_json(staging / SUMMARY, summary | totals(kept, rows))


def taken_down(url: str, label: str, entry: Blocked) -> Issue:
    """Return the row that stays of an image in the issues table."""
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


def _without(notes: Sequence[str], rows: Iterable[Issue]) -> list[str]:
    """Return the notes that name no image which was taken down."""
    names = {file_name(row.url) for row in rows if row.reason == TAKEN_DOWN} - {""}
    return [note for note in notes if not any(name in note for name in names)]

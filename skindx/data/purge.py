"""Takes blocked pictures out of a dataset folder: out of every table, the ledger and the store.

Each step takes out whatever of the block list it still finds, so a purge that was killed is
finished by the next one, and a second one changes nothing.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from skindx.data.blocklist import (
    BLOCKLIST,
    TAKEN_DOWN,
    Blocked,
    BlockList,
    join,
    now,
    web_address,
    withheld,
    write_blocklist,
)
from skindx.data.dataset_folder import SUMMARY
from skindx.data.ledger import LEDGER, LedgerRow, read_lines, row_of
from skindx.data.manifest import (
    ISSUES,
    MANIFEST,
    Issue,
    read_issues,
    read_manifest,
    write_issues,
    write_manifest,
)
from skindx.data.screen import Screened
from skindx.data.stages import Run
from skindx.data.store import STORE
from skindx.data.summary import counts
from skindx.data.switch import only_writer, settle, together
from skindx.errors import UserError
from skindx.files import sha256_file, write_json

_LEDGER_WAIT_S = 10.0


def purge(dataset: Path, blocked: BlockList) -> int:
    """Take `blocked` out of `dataset`; return the number of store files deleted.

    The tables change together, then the bytes go. The picture's row stays in the issues table and
    in the ledger, without its creator. Only for who holds `only_writer`. Raises UserError.
    """
    settle(dataset)
    ledger = dataset / LEDGER
    if ledger.exists():
        # A crawl whose build was killed needs a moment to see that its parent is gone.
        with only_writer(ledger, _LEDGER_WAIT_S):
            _purge_tables(dataset, blocked)
    else:
        _purge_tables(dataset, blocked)
    files = [file for sha256 in blocked.by_sha for file in store_files(dataset, sha256)]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


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
            rows.append(_issue(record.source_url, record.label, entry))
        else:
            kept.append(record)
    for issue in issues:
        entry = blocked.find(issue.sha256, issue.url)
        if entry:
            rows.append(_issue(issue.url, issue.label, entry))
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
        write_json(staging / SUMMARY, summary | counts(kept, rows))


def _issue(url: str, label: str, entry: Blocked) -> Issue:
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
            with (staging / path.name).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(staying)
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


def withhold(dataset: Path, rows: Sequence[LedgerRow], blocked: BlockList) -> list[LedgerRow]:
    """Return a build's rows with the blocked ones taken down; their bytes leave the store."""
    clean: list[LedgerRow] = []
    for row in rows:
        entry = blocked.find(row.sha256, row.url)
        if entry and row.path:
            (dataset / row.path).unlink(missing_ok=True)
        clean.append(withheld(row, entry) if entry else row)
    return clean


def withhold_near(
    run: Run, sound: Sequence[tuple[LedgerRow, Screened]], blocked: BlockList
) -> list[tuple[LedgerRow, Screened]]:
    """Return what is no near copy of a blocked picture; what is one is blocked and purged too."""
    if not len(blocked):
        return list(sound)
    dedup = run.settings.dedup
    codes_NKO = np.stack([screened.codes_KO for _, screened in sound])
    found = blocked.near(codes_NKO, dedup.hashes, dedup.radius)
    entries = [_near_entry(sound[position][0], entry) for position, entry in found.items()]
    if entries:
        list_ = run.out / BLOCKLIST
        write_blocklist(list_, join([list_], entries))
        purge(run.out, BlockList(entries))
    for position, entry in zip(found, entries, strict=True):
        row = sound[position][0]
        run.issues.append(_issue(row.url, row.label, entry))
    staying = [each for position, each in enumerate(sound) if position not in found]
    if not staying:
        raise UserError(
            f"every sound picture of {run.settings.name} was taken down; add other pictures."
        )
    return staying


def _near_entry(row: LedgerRow, entry: Blocked) -> Blocked:
    return Blocked(
        row.sha256,
        web_address(row.url),
        asked=entry.sha256,
        reason="it shows nearly the same as a picture that was taken down",
        when=now(),
    )

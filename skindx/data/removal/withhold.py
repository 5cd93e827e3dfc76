"""The stages of a build that keep out what was taken down or rejected, and its near copies."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from skindx.data.blocklist import (
    BLOCKLIST,
    NEAR_REASON,
    Blocked,
    BlockList,
    join,
    web_address,
    withheld,
    write_blocklist,
)
from skindx.data.build.stages import (
    Run,
)
from skindx.data.dedup.rank import Picture
from skindx.data.dedup.select import Cleaned
from skindx.data.ledger import LedgerRow, now
from skindx.data.manifest import Issue
from skindx.data.removal.copies import near_files
from skindx.data.removal.purge import purge, store_files, taken_down
from skindx.data.review import REVIEWED
from skindx.data.screening.screen import Screened
from skindx.errors import UserError


def withhold(dataset: Path, rows: Sequence[LedgerRow], blocked: BlockList) -> list[LedgerRow]:
    """Return a build's rows with the blocked ones taken down; their bytes leave the store.

    Blocked bytes that came from an address which nobody knew block that address too.
    """
    found = [(row, blocked.find(row.sha256, row.url)) for row in rows]
    new: list[Blocked] = []
    for row, entry in found:
        if entry and row.path:
            (dataset / row.path).unlink(missing_ok=True)
            new += (
                [_entry(row.sha256, row.url, entry, entry.reason)] if web_address(row.url) else []
            )
    _block(dataset, new)
    return [withheld(row, entry) if entry else row for row, entry in found]


def withhold_near(
    run: Run, sound: Sequence[tuple[LedgerRow, Screened]], blocked: BlockList
) -> list[tuple[LedgerRow, Screened]]:
    """Return what is no near copy of a blocked picture; what is one is blocked and purged too."""
    if not len(blocked):
        return list(sound)
    dedup = run.settings.dedup
    codes_NKO = np.stack([screened.codes_KO for _, screened in sound])
    found = blocked.near(codes_NKO, dedup.hashes, dedup.radius)
    rows = [sound[position][0] for position in found]
    entries = [
        _entry(row.sha256, row.url, entry, NEAR_REASON)
        for row, entry in zip(rows, found.values(), strict=True)
    ]
    _block(run.out, entries)
    for row, entry in zip(rows, entries, strict=True):
        run.issues.append(taken_down(row.url, row.label, entry))
    staying = [each for position, each in enumerate(sound) if position not in found]
    if not staying:
        raise UserError(
            f"every sound picture of {run.settings.name} was taken down; add other pictures."
        )
    return staying


def withhold_refused(run: Run, blocked: BlockList) -> None:
    """Block and purge near copies among what the screening refused: too small, say, or too dark.

    No manifest would ever name them, but their bytes would stay in the store.
    """
    if not len(blocked):
        return
    refused = {issue.sha256 for issue in run.issues if issue.sha256}
    files = sorted(file for sha256 in refused for file in store_files(run.out, sha256))
    found = near_files(files, blocked, run.settings.dedup, run.report)
    entries = []
    for position, issue in enumerate(run.issues):
        if near := found.get(issue.sha256):
            entries.append(_entry(issue.sha256, issue.url, near, NEAR_REASON))
            run.issues[position] = taken_down(issue.url, issue.label, entries[-1])
    _block(run.out, entries)


def _block(dataset: Path, entries: Sequence[Blocked]) -> None:
    if entries:
        write_blocklist(dataset / BLOCKLIST, join([dataset / BLOCKLIST], entries))
        purge(dataset, BlockList(entries))


def _entry(sha256: str, url: str, blocked: Blocked, reason: str) -> Blocked:
    """Return the entry of a picture that came in spite of `blocked`."""
    return Blocked(
        sha256,
        web_address(url),
        asked=blocked.asked or blocked.sha256,
        reason=reason,
        when=now(),
    )


def withhold_rejected(run: Run, cleaned: Cleaned) -> list[Picture]:
    """Return the kept pictures but those that a person decided to remove, whichever copy they saw.

    Duplicates are known by now: else the copy of a rejected picture would step into its place.
    """
    copies: dict[str, set[str]] = defaultdict(set)
    for issue in cleaned.issues:
        copies[issue.kept_sha256].add(issue.sha256)
    staying = []
    for picture in cleaned.kept:
        row = picture.row
        seen = sorted(run.rejected & {row.sha256, *copies[row.sha256]})
        if seen:
            which = "it" if row.sha256 in seen else f"its copy {seen[0]}"
            detail = f"a person who looked at {which} decided to remove it"
            run.issues.append(Issue(row.url, row.sha256, picture.label, REVIEWED, detail))
        else:
            staying.append(picture)
    return staying

"""Images that a build excludes: taken down or rejected, and their near copies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skindx.core.errors import UserError
from skindx.core.progress import Progress
from skindx.data.blocklist import (
    NEAR_REASON,
    Blocked,
    BlockList,
    join,
    web_address,
    withheld,
    write_blocklist,
)
from skindx.data.copies.deduplicate import Cleaned, DedupSettings, LabelledImage
from skindx.data.decisions import REVIEWED, answered_skin, read_decisions
from skindx.data.layout import BLOCKLIST, store_files, stored_file
from skindx.data.ledger import LedgerRow, now
from skindx.data.manifest import Issue
from skindx.data.removal.purge import purge, taken_down
from skindx.data.removal.removed_copies import near_files
from skindx.data.screening.screen import Screened

_REMOVE, _NO_SKIN = "decided to remove it", "said that it shows no skin"


@dataclass(frozen=True)
class Exclusions:
    """Keeps images out of one build, as soon as they can be recognised.

    By address or bytes once they are acquired, by their hashes once they are screened, by their
    copies once duplicates are found. What is found blocked leaves the store at once.
    """

    dataset: Path
    blocked: BlockList
    rejected: Mapping[str, str]
    """SHA-256 of the images that people do not want -> what they decided or said of it."""
    dedup: DedupSettings
    """Hashes, and the largest distance, that make a near copy."""

    @classmethod
    def read(cls, dataset: Path, blocklists: Sequence[Path], dedup: DedupSettings) -> "Exclusions":
        """Read block lists and what people decided. Raises UserError for damaged ones."""
        rejected = {sha256: _NO_SKIN for sha256, skin in answered_skin(dataset).items() if not skin}
        for sha256, decision in read_decisions(dataset).items():
            if decision.verdict == "remove":
                rejected[sha256] = _REMOVE
        return cls(dataset, join(blocklists), rejected, dedup)

    def purge(self) -> None:
        """Take what is blocked out of the dataset that an earlier build left."""
        if len(self.blocked):
            write_blocklist(self.dataset / BLOCKLIST, self.blocked)
            purge(self.dataset, self.blocked)

    def of_acquired(self, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
        """Return the rows with the blocked ones taken down.

        Blocked bytes that came from an unknown address block that address too.
        """
        matches = [(row, self.blocked.find(row.sha256, row.url)) for row in rows]
        new: list[Blocked] = []
        for row, entry in matches:
            if entry and row.path:
                stored_file(self.dataset, row.path).unlink(missing_ok=True)
                if web_address(row.url):
                    new.append(_entry(row.sha256, row.url, entry, entry.reason))
        self._block(new)
        return [withheld(row, entry) if entry else row for row, entry in matches]

    def of_screened(
        self, sound: Sequence[tuple[LedgerRow, Screened]], issues: Sequence[Issue], report: Progress
    ) -> tuple[list[tuple[LedgerRow, Screened]], list[Issue]]:
        """Return the sound images and the issues without near copies of what is blocked.

        Also what the screening refused, as too small or too dark, may be a near copy: no manifest
        would ever name it, but its bytes would stay in the store. Raises UserError when no sound
        image is left.
        """
        if not len(self.blocked):
            return list(sound), list(issues)
        marked = self._refused_copies(issues, report)
        codes_NKO = np.stack([screened.codes_KO for _, screened in sound])
        matches = self.blocked.near(codes_NKO, self.dedup.hashes, self.dedup.radius)
        entries = []
        for position, entry in matches.items():
            row = sound[position][0]
            entries.append(_entry(row.sha256, row.url, entry, NEAR_REASON))
            marked.append(taken_down(row.url, row.label, entries[-1]))
        self._block(entries)
        staying = [pair for position, pair in enumerate(sound) if position not in matches]
        if not staying:
            raise UserError("every sound image was taken down; add other images to the sources.")
        return staying, marked

    def of_cleaned(self, cleaned: Cleaned) -> tuple[list[LabelledImage], list[Issue]]:
        """Return the kept images but those that a person rejected, and an issue for each of these.

        Duplicates are known by now: else the copy of a rejected image would step into its place.
        """
        copies: dict[str, set[str]] = defaultdict(set)
        for issue in cleaned.issues:
            copies[issue.kept_sha256].add(issue.sha256)
        staying, issues = [], []
        for image in cleaned.kept:
            row = image.row
            seen = sorted(self.rejected.keys() & {row.sha256, *copies[row.sha256]})
            if seen:
                one = row.sha256 if row.sha256 in seen else seen[0]
                which = "it" if row.sha256 in seen else f"its copy {one}"
                detail = f"a person who looked at {which} {self.rejected[one]}"
                issues.append(Issue(row.url, row.sha256, image.label, REVIEWED, detail))
            else:
                staying.append(image)
        return staying, issues

    def _refused_copies(self, issues: Sequence[Issue], report: Progress) -> list[Issue]:
        """Block the near copies among images that have an issue already; return all issues."""
        refused = {issue.sha256 for issue in issues if issue.sha256}
        files = sorted(file for sha256 in refused for file in store_files(self.dataset, sha256))
        matches = near_files(files, self.blocked, self.dedup, report)
        marked, entries = list(issues), []
        for position, issue in enumerate(marked):
            if near := matches.get(issue.sha256):
                entries.append(_entry(issue.sha256, issue.url, near, NEAR_REASON))
                marked[position] = taken_down(issue.url, issue.label, entries[-1])
        self._block(entries)
        return marked

    def _block(self, entries: Sequence[Blocked]) -> None:
        if entries:
            path = self.dataset / BLOCKLIST
            write_blocklist(path, join([path], entries))
            purge(self.dataset, BlockList(entries))


def _entry(sha256: str, url: str, blocked: Blocked, reason: str) -> Blocked:
    """Return the entry of an image that came in spite of `blocked`."""
    return Blocked(
        sha256,
        web_address(url),
        asked=blocked.asked or blocked.sha256,
        reason=reason,
        when=now(),
    )

"""Images that a build excludes: taken down or rejected, and their copies.

Copies are found by hashes of stored images, and by pairs that a build verified.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress
from skindx.data.blocklist import (
    KINDS,
    NEAR_REASON,
    Blocked,
    BlockList,
    join,
    web_address,
    withheld,
    write_blocklist,
)
from skindx.data.copies.deduplicate import Cleaned, DedupSettings, LabelledImage
from skindx.data.copies.verified import answered_same, read_answers, read_copies, verdict
from skindx.data.decisions import REVIEWED, answered_skin, read_decisions
from skindx.data.layout import BLOCKLIST, COPIES, RECIPE, store_files, stored_file, stored_files
from skindx.data.ledger import LedgerRow, now
from skindx.data.manifest import Issue
from skindx.data.recipe import BuildSettings
from skindx.data.removal.purge import purge, taken_down
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files

# N = images, K = kinds of hash, O = orientations


# Whatever decodes is looked at: also a copy that the build found too small or too dark.
_ANYTHING = ScreenSettings(
    min_side=8,
    max_aspect=1e9,
    min_luminance=0,
    max_luminance=255,
    min_contrast=0,
    min_detail=0,
    not_skin="off",
)


def upright_codes(datasets: Iterable[Path], sha256s: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return SHA-256 -> kind of hash -> code, of the images that are stored and decode."""
    files = {s: f for s in sha256s for dataset in datasets for f in store_files(dataset, s)}
    screened = screen_files(list(files.values()), _ANYTHING, KINDS, workers=1)
    return {
        sha256: {
            kind: f"{code:016x}"
            for kind, code in zip(KINDS, verdict.codes_KO[:, 0].tolist(), strict=True)
        }
        for sha256, verdict in zip(files, screened, strict=True)
        if not verdict.reason
    }


def near_copies(dataset: Path, roots: BlockList, progress: Progress) -> dict[str, str]:
    """Return the SHA-256 of the dataset's near copies of `roots` -> the root of each."""
    recipe = dataset / RECIPE
    dedup = BuildSettings.saved(recipe).dedup if recipe.exists() else DedupSettings()
    files = sorted(stored_files(dataset))
    matches = near_files(files, roots, dedup, progress)
    return {sha256: entry.sha256 for sha256, entry in matches.items()}


def near_files(
    files: Sequence[Path], roots: BlockList, dedup: DedupSettings, progress: Progress
) -> dict[str, Blocked]:
    """Return the SHA-256 (the name) of those stored files that nearly show what `roots` has."""
    screened = screen_files(
        files,
        _ANYTHING,
        dedup.hashes,
        workers=cpu_count(),
        on_progress=lambda done, total: progress("compare", done, total),
    )
    sound = [
        (file.stem, verdict)
        for file, verdict in zip(files, screened, strict=True)
        if not verdict.reason
    ]
    if not sound:
        return {}
    codes_NKO: NDArray[np.uint64] = np.stack([verdict.codes_KO for _, verdict in sound])
    matches = roots.near(codes_NKO, dedup.hashes, dedup.radius)
    return {sound[position][0]: entry for position, entry in matches.items()}


def verified_copies(
    dataset: Path, roots: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (copies, uncertain): SHA-256 of images -> the root of what they are linked to.

    `roots` holds SHA-256 -> root of what goes already. Copies are linked to it, also through other
    copies, by pairs that the last build verified or a person called the same; uncertain ones may
    be, and are for a person. Both are empty for a dataset whose build did not look for copies.
    """
    file = dataset / COPIES
    answers = answered_same(read_answers(dataset))
    records = read_copies(file) if file.exists() else []
    verdicts = {row.pair: verdict(row, answers) for row in records}
    verdicts |= {pair: "same" for pair, agreed in answers.items() if agreed}
    linked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (one, other), kind in verdicts.items():
        linked[one, kind].add(other)
        linked[other, kind].add(one)
    root_of = dict(roots)
    edge = sorted(root_of)
    while edge:
        sha256 = edge.pop()
        for other in sorted(linked[sha256, "same"] - root_of.keys()):
            root_of[other] = root_of[sha256]
            edge.append(other)
    uncertain = {
        other: root_of[sha256]
        for sha256 in sorted(root_of)
        for other in sorted(linked[sha256, "uncertain"] - root_of.keys())
    }
    return {name: root for name, root in root_of.items() if name not in roots}, uncertain


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
            raise UserError(
                "every usable image is on the block list, so no image is left; add other images "
                "to the sources."
            )
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
        sha256, web_address(url), asked=blocked.asked or blocked.sha256, reason=reason, when=now()
    )

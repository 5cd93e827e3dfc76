"""Take-down: find an image and its copies in datasets, and keep them out for good."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skindx.core.atomic_files import only_writer, sha256_file
from skindx.core.errors import UserError
from skindx.core.progress import Progress, silent
from skindx.core.untrusted import read_json
from skindx.data.blocklist import (
    NEAR_REASON,
    Blocked,
    BlockList,
    is_sha256,
    join,
    web_address,
    write_blocklist,
)
from skindx.data.layout import BLOCKLIST, COPIES, MANIFEST, RECIPE, REPORT, SUMMARY, store_files
from skindx.data.ledger import now, read_ledger
from skindx.data.manifest import MOST_SUMMARY, read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.removal.exclusions import near_copies, upright_codes, verified_copies
from skindx.data.removal.purge import purge
from skindx.data.report.dataset_report import write_report
from skindx.data.sources.files import TableOfFiles
from skindx.data.sources.folder import FolderSource


@dataclass(frozen=True, slots=True)
class KnownImage:
    """One name under which a dataset knows an image; `split` is "" when it was not kept."""

    sha256: str
    url: str
    label: str
    split: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class AffectedImage:
    """One image that leaves a dataset, or that may belong with one that does."""

    dataset: Path
    known: KnownImage
    why: Literal["asked", "copy", "uncertain", "group"]
    """asked for, same bytes included; a copy; maybe a copy, which stays; only of the same group,
    which stays."""


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """Plan of a take-down: block these, and take them out of these datasets."""

    datasets: tuple[Path, ...]
    blocked: BlockList
    going: tuple[AffectedImage, ...]
    staying: tuple[AffectedImage, ...]
    """Maybe a copy, or of the same patient, lesion or page: for a person to decide."""
    not_compared: tuple[Path, ...] = ()
    """Datasets whose build did not look for copies beyond hashes."""


def plan(
    datasets: Sequence[Path],
    *,
    urls: Collection[str] = (),
    sha256s: Collection[str] = (),
    reason: str = "",
    near: bool = True,
    progress: Progress = silent,
) -> RemovalPlan:
    """Find the images of these URLs and SHA-256s, and their near copies, in `datasets`.

    Near copies lie within the radius and hashes of the dataset's own recipe, or are linked by pairs
    that its build verified. Images that the block lists know already are planned too, so that a
    killed take-down is finished by asking again. Raises UserError for an unknown image;
    writes nothing.
    """
    known = {dataset: _known(dataset) for dataset in datasets}
    lists = {dataset: join(_lists(dataset)) for dataset in datasets}
    before = [entry for blocklist in lists.values() for entry in blocklist.by_sha.values()]
    requested = _resolve(known, lists, urls, sha256s)
    copies = {entry.sha256: entry.asked for entry in before if entry.asked in requested}
    verified, uncertain = _verified(datasets, requested, copies) if near else ({}, {})
    roots = {**{sha256: sha256 for sha256 in requested}, **verified}
    codes, when, manifests = upright_codes(datasets, list(roots)), now(), _manifests(known)

    def block(sha256: str, root: str, why: str) -> Blocked:
        return Blocked(
            sha256,
            _web(known.values(), sha256),
            asked=root,
            reason=why,
            when=when,
            codes=codes.get(sha256, {}),
            manifests=manifests.get(sha256, {}),
        )

    entries = [block(sha256, sha256, reason) for sha256 in requested]
    why = reason or NEAR_REASON
    entries += [block(sha256, root, why) for sha256, root in sorted(verified.items())]
    looked_for = BlockList([*(entry for entry in before if entry.sha256 in roots), *entries])
    for dataset in datasets if near else ():
        copies = near_copies(dataset, looked_for, progress) | copies
    entries += [
        block(sha256, roots.get(root, root), why)
        for sha256, root in sorted(copies.items())
        if sha256 not in roots
    ]
    # What a list knew comes first: its date and reason stay.
    mine = {entry.sha256 for entry in entries}
    blocked = BlockList([*(entry for entry in before if entry.sha256 in mine), *entries])
    going, staying = _sort(known, requested, mine, uncertain)
    # Those whose last build did not compare images beyond their hashes.
    left = tuple(dataset for dataset in datasets if not (dataset / COPIES).exists())
    return RemovalPlan(tuple(datasets), blocked, going, staying, left if near else ())


def carry_out(planned: RemovalPlan) -> None:
    """Block first, then purge: killed at any moment, the same take-down can be asked for again."""
    for dataset in planned.datasets:
        with only_writer(dataset, "build or removal", wait_s=0):
            for path in _lists(dataset):
                write_blocklist(path, join([path], planned.blocked.by_sha.values()))
            reported = (dataset / REPORT).exists()
            purge(dataset, planned.blocked)
            if reported:
                write_report(dataset)


def source_copies(planned: RemovalPlan) -> list[Path]:
    """Return the files in the user's source folders that show what was taken down.

    They are not ours to delete; the next build reads them and leaves them out.
    """
    copies: dict[Path, None] = {}
    for dataset in planned.datasets:
        recipe = dataset / RECIPE
        sources = BuildSettings.saved(recipe).sources if recipe.exists() else ()
        for source in sources:
            if isinstance(source, FolderSource | TableOfFiles):
                root = source.path if isinstance(source, FolderSource) else source.root
                files = [root / image.known.url for image in planned.going]
                copies |= dict.fromkeys(file for file in files if file.is_file())
    return list(copies)


def _verified(
    datasets: Sequence[Path], requested: Collection[str], copies: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return verified copies of what is requested and of its near copies, and uncertain ones."""
    verified: dict[str, str] = {}
    uncertain: dict[str, str] = {}
    for dataset in datasets:
        roots = {**{sha256: sha256 for sha256 in requested}, **copies, **verified}
        more, doubtful = verified_copies(dataset, roots)
        verified |= more
        uncertain |= doubtful
    return verified, {name: root for name, root in uncertain.items() if name not in verified}


def _known(dataset: Path) -> list[KnownImage]:
    rows = [
        KnownImage(r.sha256, r.source_url, r.label, r.split, r.group)
        for r in read_manifest(dataset)
    ]
    rows += [KnownImage(i.sha256, i.url, i.label) for i in read_issues(dataset)]
    rows += [KnownImage(r.sha256, r.url, r.label) for r in read_ledger(dataset)]
    return rows


def _lists(dataset: Path) -> list[Path]:
    """Return the dataset's block list, and the one that its recipe shares with others."""
    recipe = dataset / RECIPE
    shared = BuildSettings.saved(recipe).blocklist if recipe.exists() else None
    return [dataset / BLOCKLIST, *([shared] if shared else [])]


def _resolve(
    known: Mapping[Path, Sequence[KnownImage]],
    lists: Mapping[Path, BlockList],
    urls: Collection[str],
    sha256s: Collection[str],
) -> list[str]:
    where = " and ".join(map(str, known))
    requested: dict[str, None] = {}
    for url in urls:
        named = {row.sha256 for rows in known.values() for row in rows if row.url == url}
        named |= {b.by_url[url].sha256 for b in lists.values() if url in b.by_url}
        if not named - {""}:
            raise UserError(
                f"{where} has no image of the URL {url!r}; copy the URL exactly from the tables "
                "in that folder."
            )
        requested |= dict.fromkeys(sorted(named - {""}))
    for sha256 in sha256s:
        if not is_sha256(sha256):
            raise UserError(
                f"--sha {sha256!r} is not a SHA-256; give 64 lower-case hexadecimal digits."
            )
        if not (
            any(row.sha256 == sha256 for rows in known.values() for row in rows)
            or any(sha256 in blocklist.by_sha for blocklist in lists.values())
            or any(store_files(dataset, sha256) for dataset in known)
        ):
            raise UserError(f"{where} has no image with --sha {sha256}; check the digits.")
        requested[sha256] = None
    return list(requested)


def _web(known: Iterable[Sequence[KnownImage]], sha256: str) -> tuple[str, ...]:
    urls = {row.url for rows in known for row in rows if row.sha256 == sha256}
    return tuple(address for url in sorted(urls) for address in web_address(url))


def _manifests(known: Mapping[Path, Sequence[KnownImage]]) -> dict[str, dict[str, str]]:
    """Return SHA-256 of an image -> SHA-256 of each manifest that holds it -> its split there.

    A take-down only takes rows away: the manifests before earlier ones held the image as well.
    """
    splits_of: dict[str, dict[str, str]] = defaultdict(dict)
    for dataset, rows in known.items():
        summary = dataset / SUMMARY
        known_summary = read_json(summary, MOST_SUMMARY, finite=False) if summary.exists() else {}
        manifests = [sha256_file(dataset / MANIFEST), *known_summary.get("earlier_manifests", [])]
        for row in rows:
            if row.split:
                splits_of[row.sha256] |= dict.fromkeys(manifests, row.split)
    return splits_of


def _sort(
    known: Mapping[Path, Sequence[KnownImage]],
    requested: Collection[str],
    going: Collection[str],
    uncertain: Collection[str],
) -> tuple[tuple[AffectedImage, ...], tuple[AffectedImage, ...]]:
    out, beside = [], []
    for dataset, rows in known.items():
        # The manifest comes first; the ledger repeats what it or the issues table says.
        named = {(row.sha256, row.url): row for row in reversed(rows) if row.sha256}
        groups = {row.group for row in rows if row.sha256 in going and row.group}
        for row in sorted(named.values(), key=lambda row: (row.sha256, row.url)):
            if row.sha256 in going:
                why: Literal["asked", "copy"] = "asked" if row.sha256 in requested else "copy"
                out.append(AffectedImage(dataset, row, why))
            elif row.sha256 in uncertain:
                beside.append(AffectedImage(dataset, row, "uncertain"))
            elif row.group in groups:
                beside.append(AffectedImage(dataset, row, "group"))
    return tuple(out), tuple(beside)

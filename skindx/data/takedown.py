"""Take-down: find a picture and its copies in datasets, and keep them out for good."""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.data.blocklist import (
    BLOCKLIST,
    KINDS,
    Blocked,
    BlockList,
    is_sha256,
    join,
    now,
    web_address,
    write_blocklist,
)
from skindx.data.dataset_folder import RECIPE, SUMMARY
from skindx.data.dedup import DedupSettings
from skindx.data.ledger import read_ledger
from skindx.data.manifest import MANIFEST, read_issues, read_manifest
from skindx.data.progress import Progress, silent
from skindx.data.purge import purge, store_files
from skindx.data.recipe import BuildSettings
from skindx.data.screen import ScreenSettings, screen_files
from skindx.data.store import STORE
from skindx.data.switch import only_writer
from skindx.errors import UserError
from skindx.files import sha256_file

# Whatever decodes is looked at: also a copy that the build found too small or too dark.
_ANYTHING = ScreenSettings(
    min_side=8, max_aspect=1e9, min_luminance=0, max_luminance=255, min_detail=0
)

# N = pictures, K = kinds of hash, O = orientations


@dataclass(frozen=True, slots=True)
class Known:
    """One name under which a dataset knows a picture; `split` is "" when it was not kept."""

    sha256: str
    url: str
    label: str
    split: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Going:
    """One picture that goes from one dataset, or that its group makes one think of."""

    dataset: Path
    known: Known
    why: Literal["asked", "copy", "group"]
    """asked for, same bytes included; a near copy; only of the same group, which stays."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a take-down will do: block these, and take them out of these datasets."""

    datasets: tuple[Path, ...]
    blocked: BlockList
    going: tuple[Going, ...]
    staying: tuple[Going, ...]
    """Of the same patient, lesion or page: for a person to decide."""


def plan(
    datasets: Sequence[Path],
    *,
    urls: Collection[str] = (),
    sha256s: Collection[str] = (),
    reason: str = "",
    near: bool = True,
    progress: Progress = silent,
) -> Plan:
    """Find the pictures of these URLs and SHA-256s, and their near copies, in `datasets`.

    Near copies lie within the radius and hashes of the dataset's own recipe. Pictures that the
    block lists know already are planned too, so that a killed take-down is finished by asking
    again. Raises UserError for a picture that nobody knows; writes nothing.
    """
    known = {dataset: _known(dataset) for dataset in datasets}
    lists = {dataset: join(_lists(dataset)) for dataset in datasets}
    asked = _resolve(known, lists, urls, sha256s)
    codes = _upright_codes(datasets, asked)
    when = now()
    entries = [
        Blocked(
            sha256,
            _web(known.values(), sha256),
            asked=sha256,
            reason=reason,
            when=when,
            codes=codes.get(sha256, {}),
            manifests=_manifests(known, sha256),
        )
        for sha256 in asked
    ]
    before = [entry for each in lists.values() for entry in each.by_sha.values()]
    roots = BlockList([*(e for e in before if e.sha256 in asked), *entries])
    copies = {entry.sha256: entry.asked for entry in before if entry.asked in asked}
    for dataset in datasets if near else ():
        copies = _near(dataset, roots, progress) | copies
    entries += [
        Blocked(
            sha256,
            _web(known.values(), sha256),
            asked=root,
            reason=reason or "it shows nearly the same as a picture that was taken down",
            when=when,
            manifests=_manifests(known, sha256),
        )
        for sha256, root in sorted(copies.items())
        if sha256 not in asked
    ]
    # What a list knew comes first: its date and reason stay.
    mine = {entry.sha256 for entry in entries}
    blocked = BlockList([*(e for e in before if e.sha256 in mine), *entries])
    going, staying = _sort(known, asked, mine)
    return Plan(tuple(datasets), blocked, going, staying)


def carry_out(planned: Plan) -> None:
    """Block first, then purge: killed at any moment, the same take-down can be asked for again."""
    for dataset in planned.datasets:
        with only_writer(dataset):
            for path in _lists(dataset):
                write_blocklist(path, join([path], planned.blocked.by_sha.values()))
            purge(dataset, planned.blocked)


def _known(dataset: Path) -> list[Known]:
    rows = [
        Known(r.sha256, r.source_url, r.label, r.split, r.group) for r in read_manifest(dataset)
    ]
    rows += [Known(i.sha256, i.url, i.label) for i in read_issues(dataset)]
    rows += [Known(r.sha256, r.url, r.label) for r in read_ledger(dataset)]
    return rows


def _lists(dataset: Path) -> list[Path]:
    """Return the dataset's block list, and the one that its recipe shares with others."""
    recipe = dataset / RECIPE
    shared = BuildSettings.load(recipe).blocklist if recipe.exists() else None
    return [dataset / BLOCKLIST, *([shared] if shared else [])]


def _resolve(
    known: Mapping[Path, Sequence[Known]],
    lists: Mapping[Path, BlockList],
    urls: Collection[str],
    sha256s: Collection[str],
) -> list[str]:
    where = " and ".join(map(str, known))
    asked: dict[str, None] = {}
    for url in urls:
        found = {each.sha256 for rows in known.values() for each in rows if each.url == url}
        found |= {b.by_url[url].sha256 for b in lists.values() if url in b.by_url}
        if not found - {""}:
            raise UserError(
                f"{where} knows no picture of the URL {url!r}; give it as its page had it."
            )
        asked |= dict.fromkeys(sorted(found - {""}))
    for sha256 in sha256s:
        if not is_sha256(sha256):
            raise UserError(
                f"--sha {sha256!r} is no SHA-256; give 64 lower-case hexadecimal digits."
            )
        if not (
            any(each.sha256 == sha256 for rows in known.values() for each in rows)
            or any(sha256 in each.by_sha for each in lists.values())
            or any(store_files(dataset, sha256) for dataset in known)
        ):
            raise UserError(f"{where} knows no picture of the SHA-256 {sha256}; check it.")
        asked[sha256] = None
    return list(asked)


def _upright_codes(datasets: Iterable[Path], sha256s: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return SHA-256 -> kind of hash -> code, of the pictures that are stored and decode."""
    files = {s: f for s in sha256s for dataset in datasets for f in store_files(dataset, s)}
    screened = screen_files(list(files.values()), _ANYTHING, KINDS, workers=1)
    return {
        sha256: {
            kind: f"{code:016x}"
            for kind, code in zip(KINDS, each.codes_KO[:, 0].tolist(), strict=True)
        }
        for sha256, each in zip(files, screened, strict=True)
        if not each.reason
    }


def _web(known: Iterable[Sequence[Known]], sha256: str) -> tuple[str, ...]:
    urls = {each.url for rows in known for each in rows if each.sha256 == sha256}
    return tuple(address for url in sorted(urls) for address in web_address(url))


def _manifests(known: Mapping[Path, Sequence[Known]], sha256: str) -> dict[str, str]:
    """Return the SHA-256 of each manifest that holds a picture, also before earlier take-downs."""
    found: dict[str, str] = {}
    for dataset, rows in known.items():
        for each in rows:
            if each.sha256 == sha256 and each.split:
                manifests = [sha256_file(dataset / MANIFEST), *earlier_manifests(dataset)]
                found |= dict.fromkeys(manifests, each.split)
    return found


def earlier_manifests(dataset: Path) -> list[str]:
    """Return the SHA-256 of the manifest as it was before each take-down since it was built."""
    path = dataset / SUMMARY
    if not path.exists():
        return []
    earlier: list[str] = json.loads(path.read_text(encoding="utf-8")).get("earlier_manifests", [])
    return earlier


def _near(dataset: Path, roots: BlockList, progress: Progress) -> dict[str, str]:
    """Return the SHA-256 of the dataset's near copies of `roots` -> the root of each."""
    recipe = dataset / RECIPE
    dedup = BuildSettings.load(recipe).dedup if recipe.exists() else DedupSettings()
    files = sorted((dataset / STORE).glob("*/*"))
    screened = screen_files(
        files,
        _ANYTHING,
        dedup.hashes,
        workers=os.cpu_count() or 1,
        on_progress=lambda done, total: progress("compare", done, total),
    )
    sound = [
        (file.stem, each) for file, each in zip(files, screened, strict=True) if not each.reason
    ]
    if not sound:
        return {}
    codes_NKO: NDArray[np.uint64] = np.stack([each.codes_KO for _, each in sound])
    found = roots.near(codes_NKO, dedup.hashes, dedup.radius)
    return {sound[position][0]: entry.sha256 for position, entry in found.items()}


def _sort(
    known: Mapping[Path, Sequence[Known]], asked: Collection[str], going: Collection[str]
) -> tuple[tuple[Going, ...], tuple[Going, ...]]:
    out, beside = [], []
    for dataset, rows in known.items():
        # The manifest speaks first; the ledger repeats what it or the issues table says.
        named = {(each.sha256, each.url): each for each in reversed(rows) if each.sha256}
        groups = {each.group for each in rows if each.sha256 in going and each.group}
        for each in sorted(named.values(), key=lambda each: (each.sha256, each.url)):
            if each.sha256 in going:
                why: Literal["asked", "copy"] = "asked" if each.sha256 in asked else "copy"
                out.append(Going(dataset, each, why))
            elif each.group in groups:
                beside.append(Going(dataset, each, "group"))
    return tuple(out), tuple(beside)

"""The block list: images that were taken down and must not come back, exact or nearly.

`blocklist.jsonl` holds hashes and addresses, nothing of what an image shows: its SHA-256, the
URLs under which it was found, and one 64-bit code of each kind of image hash.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.data.ledger import LedgerRow
from skindx.imaging.hashes import HashKind

TAKEN_DOWN = "taken-down"
NEAR_REASON = "it shows nearly the same as an image that was taken down"
KINDS: tuple[HashKind, ...] = get_args(HashKind)

# N = images, K = kinds of hash, O = orientations


@dataclass(frozen=True, slots=True)
class Blocked:
    """One image that must not come back."""

    sha256: str
    urls: tuple[str, ...] = ()
    asked: str = ""
    """SHA-256 of the image that was asked for; a near copy of it has the same."""
    reason: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    codes: Mapping[str, str] = field(default_factory=dict)
    """Kind of hash -> code of the upright image, hexadecimal.

    Only what was asked for has codes: a near copy's own near copies may be another image.
    """
    manifests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each manifest that held it -> its split there: which bundles learned from it."""

    @property
    def detail(self) -> str:
        """Say it in a sentence."""
        why = f": {self.reason}" if self.reason else ""
        return f"taken down on {self.when[:10]}{why}"


class BlockList:
    """Blocked images, by SHA-256; entries of the same image are one."""

    def __init__(self, entries: Iterable[Blocked] = ()) -> None:
        self.by_sha: dict[str, Blocked] = {}
        self.by_url: dict[str, Blocked] = {}
        for entry in entries:
            known = self.by_sha.get(entry.sha256)
            merged = _merge(known, entry) if known else entry
            self.by_sha[entry.sha256] = merged
            self.by_url |= dict.fromkeys(merged.urls, merged)

    def __len__(self) -> int:
        return len(self.by_sha)

    def find(self, sha256: str, url: str) -> Blocked | None:
        """Return what blocks an image: its bytes or its address."""
        return self.by_sha.get(sha256) or self.by_url.get(url)

    def near(
        self, codes_NKO: NDArray[np.uint64], hashes: Sequence[HashKind], radius: int
    ) -> dict[int, Blocked]:
        """Return position -> entry for images within `radius` bits of what is blocked.

        The distance is that of `near_links`: over the eight orientations of the image, the
        least of the largest Hamming distance among the kinds in `hashes`, in the order of K.
        """
        matches: dict[int, Blocked] = {}
        for entry in self.by_sha.values():
            if not all(kind in entry.codes for kind in hashes):
                continue
            upright_K1 = np.array([[int(entry.codes[kind], 16)] for kind in hashes], np.uint64)
            distance_N = np.bitwise_count(codes_NKO ^ upright_K1).max(axis=1).min(axis=1)
            for position in np.flatnonzero(distance_N <= radius).tolist():
                matches.setdefault(position, entry)
        return matches


def _merge(first: Blocked, second: Blocked) -> Blocked:
    return dataclasses.replace(
        first,
        urls=tuple(dict.fromkeys((*first.urls, *second.urls))),
        codes={**second.codes, **first.codes},
        manifests={**second.manifests, **first.manifests},
    )


def read_blocklist(path: Path) -> BlockList:
    """Read a block list; an absent file blocks nothing. Raises UserError for a damaged line."""
    entries = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the block list {path} cannot be read ({error}); restore it from a backup, or check "
            "its permissions."
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            entry = Blocked(**json.loads(line))
            sound = is_sha256(entry.sha256) and all(
                int(code, 16) < 1 << 64 for code in entry.codes.values()
            )
            entries.append(dataclasses.replace(entry, urls=tuple(entry.urls)))
        except (ValueError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise UserError(
                f"line {number} of the block list {path} is damaged; restore the file from a "
                "backup."
            )
    return BlockList(entries)


def is_sha256(text: object) -> bool:
    """Tell whether this is a SHA-256 in lower-case hexadecimal."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def write_blocklist(path: Path, blocked: BlockList) -> None:
    """Write a block list, atomically, one line an image."""
    rows = sorted(blocked.by_sha.values(), key=lambda entry: (entry.when, entry.sha256))
    lines = [json.dumps(dataclasses.asdict(entry), ensure_ascii=False) for entry in rows]
    write_text(path, "".join(f"{line}\n" for line in lines))


def join(paths: Iterable[Path], more: Iterable[Blocked] = ()) -> BlockList:
    """Return the entries of several block lists, and `more`, as one."""
    lists = [read_blocklist(path) for path in dict.fromkeys(paths)]
    return BlockList(
        [*(entry for blocklist in lists for entry in blocklist.by_sha.values()), *more]
    )


def web_address(url: str) -> tuple[str, ...]:
    """Return what to block of a URL: a path in a folder may tomorrow hold another image."""
    return (url,) if "://" in url else ()


def withheld(row: LedgerRow, entry: Blocked) -> LedgerRow:
    """Return the rest of a row: that its URL was taken down; no name, no image."""
    return LedgerRow(
        url=row.url,
        label=row.label,
        status=TAKEN_DOWN,
        detail=entry.detail,
        sha256=entry.sha256,
        retrieved=row.retrieved,
        source=row.source,
    )

"""One published row of a kept image, with its bytes or only its address."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from skindx.data.blocklist import TAKEN_DOWN
from skindx.data.box import Box
from skindx.data.licence import parse_licence
from skindx.data.manifest import SPLITS, Issue, Record, Split
from skindx.data.publish.decide import PRIVATE_REASONS

_MAIL = re.compile(r"[^\s@]@[^\s@]+\.")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the published manifest; the columns that `Record` has too mean the same.

    `sha256` is of the image as it came, `published_sha256` of the bytes that are given away.
    """

    sha256: str
    split: Split
    label: str
    group: str
    """The smallest SHA-256 of the group: the source's own ids may name a patient."""
    withheld: str = ""
    """Why its bytes are not published, as a fixed short word; "": they are."""
    withheld_detail: str = ""
    file_name: str = ""
    """The image's own name, made of its hash, also inside a shard."""
    path: str = ""
    """The file of this folder that holds its bytes: a shard, or the image itself."""
    published_sha256: str = ""
    reencoded: bool = False
    """Its pixels are not exactly the original's."""
    width: int = 0
    height: int = 0
    boxes: tuple[Box, ...] | None = None
    skin_type: int | None = None
    licence: str = ""
    licence_url: str = ""
    licence_said: str = ""
    """The source's own words."""
    creator: str = ""
    attribution: str = ""
    source: str = ""
    source_url: str = ""
    page_url: str = ""
    retrieved: str = ""
    perceptual_hash: str = ""
    fold: int | None = None
    """For cross-validation over train and val; None in the other splits."""


def rows_of(records: Iterable[Record], withheld: Mapping[str, tuple[str, str]]) -> list[Row]:
    """Return a row a record; `withheld` holds (reason, sentence) by SHA-256."""
    rows = []
    for record in records:
        licence = parse_licence(record.licence)
        reason, detail = withheld.get(record.sha256, ("", ""))
        row = Row(
            sha256=record.sha256,
            split=record.split,
            label=record.label,
            group=record.group,
            withheld=reason,
            withheld_detail=detail,
            width=record.width,
            height=record.height,
            boxes=_signed(record.boxes),
            skin_type=record.skin_type,
            fold=record.fold,
            licence=licence.id,
            licence_url=licence.url,
            licence_said=record.licence,
            creator=record.creator,
            attribution=record.attribution,
            source=record.source,
            source_url=web_address(record.source_url),
            page_url=web_address(record.page_url),
            retrieved=record.retrieved,
            perceptual_hash=record.perceptual_hash,
        )
        rows.append(_unnamed(row) if reason in PRIVATE_REASONS else row)
    return name_groups(rows)


def _unnamed(row: Row) -> Row:
    """Return a row that does not identify an image of a face or an intimate region."""
    return dataclasses.replace(
        row,
        creator="",
        attribution="",
        source_url="",
        page_url="",
        retrieved="",
        perceptual_hash="",
    )


def _signed(boxes: tuple[Box, ...] | None) -> tuple[Box, ...] | None:
    """Return boxes without mail addresses: Label Studio signs with the account's."""
    return boxes and tuple(
        dataclasses.replace(box, drawn_by="a person") if _MAIL.search(box.drawn_by) else box
        for box in boxes
    )


def web_address(url: str) -> str:
    """Return a web address as it is, else "".

    A path on a person's disk may hold a name, and the part before an @ a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    plain = "@" not in parts.netloc and not url[:1].isspace()
    return url if parts.scheme in ("http", "https") and plain else ""


def name_groups(rows: Sequence[Row]) -> list[Row]:
    """Name each group by the smallest SHA-256 in it."""
    members = defaultdict(list)
    for row in rows:
        members[row.group].append(row.sha256)
    return [dataclasses.replace(row, group=min(members[row.group])) for row in rows]


def public_issues(issues: Iterable[Issue], taken_down: Iterable[str] = ()) -> list[Issue]:
    """Return the issues that others may read: no path of this disk, nothing of what was removed.

    A sentence about a file of this disk, or one that names another image, is left out; the
    reason and the hashes say the same.
    """
    gone = set(taken_down)
    return [
        dataclasses.replace(
            issue,
            url=web_address(issue.url),
            detail=issue.detail if web_address(issue.url) and not issue.kept_sha256 else "",
        )
        for issue in issues
        if issue.sha256 not in gone and issue.kept_sha256 not in gone and issue.reason != TAKEN_DOWN
    ]


def in_shard_order(rows: Iterable[Row]) -> list[Row]:
    """Return published rows by split, then by SHA-256, which mixes the classes."""
    chosen = (row for row in rows if not row.withheld)
    return sorted(chosen, key=lambda row: (SPLITS.index(row.split), row.sha256))

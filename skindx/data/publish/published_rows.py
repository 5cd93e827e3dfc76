"""The rows of a published dataset: which images are given away, their columns, and the manifest.

Licences, people's decisions and open flags decide whether an image is given away with its bytes or
only with its address.
"""

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skindx.core.errors import UserError
from skindx.data.answer_log import ReviewAnswer
from skindx.data.blocklist import TAKEN_DOWN
from skindx.data.box import Box
from skindx.data.decisions import REVIEWED, Flag, looked_at, read_decisions, undecided
from skindx.data.layout import MANIFEST
from skindx.data.manifest import SPLITS, Issue, Record, Split, check_row, read_rows, write_table
from skindx.data.origin import RESERVED, UNKNOWN, Licence, parse_licence
from skindx.data.typed_rows import Int8, Int32, arrow_schema, column_types, shared_values

if TYPE_CHECKING:
    import pyarrow as pa


PENDING = "review-pending"
PRIVATE_REASONS = frozenset({REVIEWED, PENDING})
"""Reasons to withhold an image together with its address."""


def check_audited(dataset: Path, records: Sequence[Record]) -> None:
    """Raise UserError unless a program has looked at every image for faces, text, intimacy.

    An image on which a person has decided needs no program.
    """
    seen = looked_at(dataset) | read_decisions(dataset).keys()
    unseen = sum(record.sha256 not in seen for record in records)
    if unseen:
        raise UserError(
            f"{unseen} of the {len(records)} images of {dataset} were not checked for faces, text "
            f"and intimate regions; run `skindx audit {dataset}` first, or add --unaudited to "
            "publish them without this check."
        )


def withheld_of(dataset: Path, records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Return SHA-256 -> (reason, sentence) of the images whose bytes are not given away.

    What a person decided comes first, then flags that wait for a person, then the licence.
    """
    decisions, waiting = read_decisions(dataset), undecided(dataset)
    withheld = {}
    for record in records:
        why = _private(record, decisions, waiting) or _licensed(
            parse_licence(record.licence), record
        )
        if why:
            withheld[record.sha256] = why
    return withheld


def _private(
    record: Record, decisions: Mapping[str, ReviewAnswer], waiting: Mapping[str, Sequence[Flag]]
) -> tuple[str, str] | None:
    decision = decisions.get(record.sha256)
    if decision and decision.verdict != "keep":
        # Not the note: a person wrote it for colleagues.
        return REVIEWED, f"A person who reviewed it decided: {decision.verdict}."
    if record.sha256 in waiting:
        # Not what for: it would be a list of such images.
        return PENDING, "A program flagged it, and there is no decision yet."
    return None


def _licensed(licence: Licence, record: Record) -> tuple[str, str] | None:
    words = repr(record.licence[:200]) if record.licence else "none"
    if licence == UNKNOWN:
        return "licence-unknown", f"No known licence: the source says {words}."
    if licence == RESERVED or not licence.may_redistribute:
        return "licence-reserved", f"Its licence permits no copies: the source says {words}."
    if not licence.may_adapt:
        return (
            "licence-no-derivatives",
            f"{licence.id} permits no changed copies, and metadata is removed here.",
        )
    if licence.needs_attribution and not (record.creator.strip() or record.attribution.strip()):
        return (
            "attribution-missing",
            f"{licence.id} requires attribution, and the source names no creator.",
        )
    return None


_MAIL = re.compile(r"[^\s@]@[^\s@]+\.")


@dataclass(frozen=True, slots=True)
class PublishedRow:
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
    """Whether its pixels are not exactly the original's."""
    width: Int32 = 0
    height: Int32 = 0
    boxes: tuple[Box, ...] | None = None
    skin_type: Int8 | None = None
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
    fold: Int8 | None = None
    """Fold for cross-validation over train and val; None in the other splits."""


_UNNAMED: dict[str, Any] = dict.fromkeys(
    ("creator", "attribution", "source_url", "page_url", "retrieved", "perceptual_hash"), ""
)
"""Values in the row of an image of a face or intimate region, which nothing may identify."""


def rows_of(
    records: Iterable[Record], withheld: Mapping[str, tuple[str, str]]
) -> list[PublishedRow]:
    """Return a row a record; `withheld` holds (reason, sentence) by SHA-256."""
    rows = []
    for record in records:
        licence = parse_licence(record.licence)
        reason, detail = withheld.get(record.sha256, ("", ""))
        public = shared_values(record, PublishedRow) | {
            "path": "",
            "boxes": _signed(record.boxes),
            "licence": licence.id,
            "source_url": web_address(record.source_url),
            "page_url": web_address(record.page_url),
        }
        row = PublishedRow(
            **public,
            withheld=reason,
            withheld_detail=detail,
            licence_url=licence.url,
            licence_said=record.licence,
        )
        if reason in PRIVATE_REASONS:
            row = dataclasses.replace(row, **_UNNAMED)
        rows.append(row)
    return name_groups(rows)


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


def name_groups(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
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


def in_shard_order(rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """Return published rows by split, then by SHA-256, which mixes the classes."""
    chosen = (row for row in rows if not row.withheld)
    return sorted(chosen, key=lambda row: (SPLITS.index(row.split), row.sha256))


_MANIFEST_ONLY = ("withheld", "withheld_detail", "path")
NAMES = tuple(field.name for field in dataclasses.fields(PublishedRow))
SHARD_NAMES = ("image", *(name for name in NAMES if name not in _MANIFEST_ONLY))


def shard_schema(classes: Sequence[str], names: Sequence[str] = SHARD_NAMES) -> "pa.Schema":
    """Return the schema of a shard's columns with their features, as `datasets` itself writes it.

    The column `label` holds the class's position in `classes`.
    """
    import pyarrow as pa

    types = {field.name: field.type for field in arrow_schema(PublishedRow)}
    types["image"] = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types["label"] = pa.int64()
    info = json.dumps({"info": {"features": features(classes, names)}})
    return pa.schema([(name, types[name]) for name in names], metadata={"huggingface": info})


def features(classes: Sequence[str], names: Sequence[str] = SHARD_NAMES) -> dict[str, Any]:
    """Return the features of columns as `datasets.Features.from_dict` reads them."""
    special: dict[str, Any] = {
        "image": {"_type": "Image"},
        "label": {"names": list(classes), "_type": "ClassLabel"},
        # A list around the feature is read by every version of `datasets`.
        "boxes": [{name: _value(kind) for name, kind in column_types(Box).items()}],
    }
    kinds = column_types(PublishedRow)
    return {name: special.get(name) or _value(kinds[name]) for name in names}


def card_features(classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the features as the front matter of a dataset card names them."""
    names = {str(position): name for position, name in enumerate(classes)}
    special: dict[str, dict[str, Any]] = {
        "image": {"dtype": "image"},
        "label": {"dtype": {"class_label": {"names": names}}},
        "boxes": {"list": [{"name": n, "dtype": kind} for n, kind in column_types(Box).items()]},
    }
    kinds = column_types(PublishedRow)
    return [{"name": name, **(special.get(name) or {"dtype": kinds[name]})} for name in SHARD_NAMES]


def _value(kind: str) -> dict[str, str]:
    return {"dtype": kind, "_type": "Value"}


def write_rows(folder: Path, rows: Sequence[PublishedRow]) -> None:
    write_table(folder / MANIFEST, rows, PublishedRow)


def read_published(folder: Path) -> list[PublishedRow]:
    """Read a published folder's manifest. Raises UserError when it is none."""
    rows = read_rows(folder / MANIFEST, PublishedRow, "run `skindx publish`")
    for row in rows:
        check_row(folder, row)
    return [PublishedRow(**row) for row in rows]

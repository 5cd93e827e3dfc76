"""Take images out of a folder that is already published."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from skindx.core.atomic_files import atomic_folder
from skindx.core.errors import UserError
from skindx.data.labels import check_labels
from skindx.data.layout import TAXONOMY, stored_file
from skindx.data.manifest import Issue, read_issues
from skindx.data.publish.facts import Facts
from skindx.data.publish.formats import FORMATS
from skindx.data.publish.manifest import read_published
from skindx.data.publish.place import PUBLISHED, cleared_place
from skindx.data.publish.row import Row, in_shard_order, name_groups, public_issues
from skindx.data.publish.side_files import write_side_files
from skindx.taxonomy import load_taxonomy


def drop(pub: Path, sha256s: Collection[str]) -> int:
    """Remove images from a published folder of any format; return how many kept ones went.

    `sha256s` are of originals or of published bytes. An image goes with its manifest row, its
    address, its box, its row in the issues table, and the rows of duplicates of it; counts, plots
    and check sums are made again. The whole folder is written again beside the old one and takes
    its place: what is left equals a folder that never held the image. Raises UserError for a
    folder that `publish` did not write, or whose files are not what it wrote.
    """
    with cleared_place(pub):
        facts, rows, issues = Facts.read(pub), read_published(pub), read_issues(pub)
        gone = _named(rows, sha256s)
        left = name_groups([row for row in rows if row.sha256 not in gone])
        open_issues = public_issues(issues, gone)
        if len(left) < len(rows) or len(open_issues) < len(issues):
            _write_without(pub, facts, rows, left, open_issues)
    return len(rows) - len(left)


def held_in(pub: Path, sha256s: Collection[str]) -> int:
    """Return how many kept images `drop` would remove. Raises UserError as `drop` does."""
    rows = read_published(pub)
    gone = _named(rows, sha256s)
    return sum(row.sha256 in gone for row in rows)


def _named(rows: Sequence[Row], sha256s: Collection[str]) -> set[str]:
    """Return the SHA-256s of originals, those too that are named by their published bytes."""
    asked = {sha256.strip().lower() for sha256 in sha256s}
    return asked | {row.sha256 for row in rows if row.published_sha256 in asked}


def _write_without(
    pub: Path, facts: Facts, rows: Sequence[Row], left: Sequence[Row], issues: Sequence[Issue]
) -> None:
    taxonomy = load_taxonomy(pub / TAXONOMY)
    check_labels({row.label for row in rows}, taxonomy)
    for path in {row.path for row in rows if row.path}:
        stored_file(pub, path)  # a published folder may come from anyone as well
    layout = FORMATS[facts.format]
    before, after = in_shard_order(rows), in_shard_order(left)
    with atomic_folder(pub, PUBLISHED) as folder:
        images = _without(layout.read(pub, before), before, after, pub)
        written = layout.write(folder, images, taxonomy.keys, facts.shard_bytes)
        by_sha = {row.sha256: row for row in written}
        whole = [by_sha.get(row.sha256, row) for row in left]
        write_side_files(folder, whole, issues, taxonomy, facts)


def _without(
    stored: Iterator[tuple[str, bytes]], before: Sequence[Row], after: Sequence[Row], pub: Path
) -> Iterator[tuple[Row, bytes]]:
    """Yield the rows that stay with their bytes, each checked against its hash."""
    stays = {row.sha256: row for row in after}
    for row, (sha256, data) in zip(before, stored, strict=True):
        if row.sha256 != sha256 or hashlib.sha256(data).hexdigest() != row.published_sha256:
            raise UserError(
                f"{pub / row.path} does not hold what {pub}/manifest.parquet says; publish the "
                f"dataset again."
            )
        if sha256 in stays:
            yield stays[sha256], data

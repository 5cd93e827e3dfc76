"""From the private dataset folder to the copy for others, and images out of such a copy."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from skindx.core.atomic_files import atomic_folder
from skindx.core.errors import UserError
from skindx.data.labels import check_labels
from skindx.data.layout import RECIPE, TAXONOMY, stored_file
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.data.publish.clean_images import CleanFile, clean_files
from skindx.data.publish.croissant import import_mlcroissant
from skindx.data.publish.publish_formats import FORMATS
from skindx.data.publish.publish_settings import PublishedFacts, PublishSettings
from skindx.data.publish.published_folder import (
    PUBLISHED,
    check_place,
    cleared_place,
    write_side_files,
)
from skindx.data.publish.published_rows import (
    PRIVATE_REASONS,
    PublishedRow,
    check_audited,
    in_shard_order,
    name_groups,
    public_issues,
    read_published,
    rows_of,
    withheld_of,
)
from skindx.data.recipe import BuildSettings
from skindx.taxonomy import load_taxonomy

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PublishedCounts:
    """Outcome of a dataset's images; `withheld` counts them by reason."""

    folder: Path
    kept: int
    published: int
    reencoded: int
    withheld: dict[str, int]


def publish(
    dataset: Path, out: Path, settings: PublishSettings, *, progress: Progress | None = None
) -> PublishedCounts:
    """Write the copy of a dataset that may be given away; it replaces an earlier one in `out`.

    An image that may not be given away stands in the manifest with the reason, and none of its
    bytes anywhere. Nothing of an earlier copy changes before the new one is whole. Raises
    UserError for a dataset without an audit, and when no image at all may be published.
    """
    records = read_manifest(dataset)
    recipe = BuildSettings.load(dataset / RECIPE)
    facts = PublishedFacts.of(recipe, settings)
    import_mlcroissant()
    check_place(out, dataset)
    if not settings.unaudited:
        check_audited(dataset, records)
    withheld = withheld_of(dataset, records)
    if len(withheld) == len(records):
        reason, (_, detail) = _commonest(withheld), next(iter(withheld.values()))
        raise UserError(
            f"none of the {len(records)} images of {dataset} may be published (most often: "
            f"{reason}; the first: {detail.rstrip('.')}); name licence and creator in the recipe's "
            f"source, or decide on flagged images, and build again."
        )
    taxonomy = load_taxonomy(dataset / TAXONOMY)
    rows = rows_of(records, withheld)
    check_labels({row.label for row in rows}, taxonomy)
    with cleared_place(out), atomic_folder(out, PUBLISHED) as folder:
        images = in_shard_order(rows)
        with closing(
            _cleaned(dataset, folder, records, images, recipe, progress=progress)
        ) as cleaned:
            written = FORMATS[facts.format].write(folder, cleaned, taxonomy.keys, facts.shard_bytes)
        by_sha = {row.sha256: row for row in written}
        rows = [by_sha.get(row.sha256, row) for row in rows]
        private = [row.sha256 for row in rows if row.withheld in PRIVATE_REASONS]
        issues = public_issues(read_issues(dataset), private)
        write_side_files(folder, rows, issues, taxonomy, facts)
    return PublishedCounts(
        out,
        kept=len(rows),
        published=len(written),
        reencoded=sum(row.reencoded for row in written),
        withheld=dict(Counter(row.withheld for row in rows if row.withheld).most_common()),
    )


def _commonest(withheld: dict[str, tuple[str, str]]) -> str:
    return Counter(reason for reason, _ in withheld.values()).most_common(1)[0][0]


def _cleaned(
    dataset: Path,
    folder: Path,
    records: Sequence[Record],
    rows: Sequence[PublishedRow],
    recipe: BuildSettings,
    *,
    progress: Progress | None,
) -> Generator[tuple[PublishedRow, bytes]]:
    """Yield rows with the bytes that are given away, in the order of `rows`.

    What is between decoding and writing lies beside `folder`, the one that is being written.
    """
    path_of = {record.sha256: record.path for record in records}
    paths = [stored_file(dataset, path_of[row.sha256]) for row in rows]
    # The decoding processes end before the folder goes that they write to.
    with (
        TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch,
        closing(clean_files(paths, Path(scratch), recipe.screen)) as cleaned,
    ):
        for done, (row, path, clean) in enumerate(zip(rows, paths, cleaned, strict=True), 1):
            data = _taken(path, row.sha256, clean)
            if progress:
                progress(done, len(rows))
            yield (
                dataclasses.replace(
                    row,
                    file_name=f"{row.sha256}{clean.suffix}",
                    published_sha256=hashlib.sha256(data).hexdigest(),
                    reencoded=clean.reencoded,
                    width=clean.width,
                    height=clean.height,
                ),
                data,
            )


def _taken(path: Path, sha256: str, clean: CleanFile) -> bytes:
    """Return a clean image's bytes; its file goes. Raises UserError when there is none."""
    if clean.problem:
        raise UserError(f"{path} {clean.problem}; build the dataset again.")
    if clean.sha256 != sha256:
        raise UserError(
            f"{path} no longer holds the image that the manifest names; delete it and build the "
            f"dataset again."
        )
    data = clean.path.read_bytes()
    clean.path.unlink()
    return data


def drop(pub: Path, sha256s: Collection[str]) -> int:
    """Remove images from a published folder of any format; return how many kept ones went.

    `sha256s` are of originals or of published bytes. An image goes with its manifest row, its
    address, its box, its row in the issues table, and the rows of duplicates of it; counts, plots
    and check sums are made again. The whole folder is written again beside the old one and takes
    its place: what is left equals a folder that never held the image. Raises UserError for a
    folder that `publish` did not write, or whose files are not what it wrote.
    """
    with cleared_place(pub):
        facts, rows, issues = PublishedFacts.read(pub), read_published(pub), read_issues(pub)
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


def _named(rows: Sequence[PublishedRow], sha256s: Collection[str]) -> set[str]:
    """Return the SHA-256s of originals, those too that are named by their published bytes."""
    named = {sha256.strip().lower() for sha256 in sha256s}
    return named | {row.sha256 for row in rows if row.published_sha256 in named}


def _write_without(
    pub: Path,
    facts: PublishedFacts,
    rows: Sequence[PublishedRow],
    left: Sequence[PublishedRow],
    issues: Sequence[Issue],
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
    stored: Iterator[tuple[str, bytes]],
    before: Sequence[PublishedRow],
    after: Sequence[PublishedRow],
    pub: Path,
) -> Iterator[tuple[PublishedRow, bytes]]:
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

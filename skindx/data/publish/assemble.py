"""Make a copy of the private dataset folder for others, and take images out of such a copy."""

import dataclasses
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skindx.core.atomic_files import (
    FolderKind,
    atomic_folder,
    below,
    finish_folder,
    leftovers,
    only_writer,
    sha256_file,
    write_csv,
    write_json,
)
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import coco_json
from skindx.data.labels import check_labels
from skindx.data.layout import ISSUES, MANIFEST, RECIPE, TAXONOMY, stored_file
from skindx.data.manifest import SPLITS, Issue, Record, read_issues, read_manifest, write_issues
from skindx.data.publish.clean_images import CleanFile, clean_files
from skindx.data.publish.croissant import CROISSANT, import_mlcroissant, write_croissant
from skindx.data.publish.dataset_card import CARD, PLOTS, limits_of, write_card, write_plots
from skindx.data.publish.publish_formats import DATA, FOR_PEOPLE, FORMATS
from skindx.data.publish.publish_settings import FACTS, PublishedFacts, PublishSettings
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
    write_rows,
)
from skindx.data.recipe import BuildSettings
from skindx.data.tables.cells import no_formula
from skindx.taxonomy import Taxonomy, load_taxonomy

SUMS = "SHA256SUMS"
SPLITS_CSV = "splits.csv"
COCO = "coco.json"


def write_side_files(
    folder: Path,
    rows: Sequence[PublishedRow],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    facts: PublishedFacts,
) -> None:
    """Write tables, boxes, Croissant, card and check sums beside the images in `folder`."""
    write_rows(folder, rows)
    write_issues(folder, issues)
    columns = ("sha256", "split", "fold", "label", "group")
    placed = ([no_formula(getattr(row, column)) for column in columns] for row in rows)
    write_csv(folder / SPLITS_CSV, columns, placed)
    taxonomy.save(folder / TAXONOMY)
    write_json(folder / COCO, published_coco(rows, facts.name))
    facts.write(folder)
    limits = limits_of(rows, taxonomy, facts)
    # Each file is read once; what is written from here on joins the sums below.
    sums = _sums(folder)
    plots = write_plots(folder, rows, taxonomy)
    pictures = {row.path for row in rows if not FORMATS[facts.format].sharded}
    described = {path: digest for path, digest in sums.items() if path not in pictures}
    write_croissant(
        folder, rows=rows, taxonomy=taxonomy, facts=facts, sums=described, limits=limits
    )
    write_card(
        folder, rows=rows, issues=issues, taxonomy=taxonomy, facts=facts, plots=plots, limits=limits
    )
    sums |= _sums(folder, known=sums)
    lines = [f"{digest}  {path}\n" for path, digest in sorted(sums.items())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _sums(folder: Path, known: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file below `folder` by its relative path, but for `known` ones."""
    paths = [path for path in below(folder) if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: sha256_file(path) for name, path in names.items() if name not in known}


def published_coco(rows: Sequence[PublishedRow], name: str) -> dict[str, Any]:
    """Return COCO's tables of the published rows that were reviewed, with their licences."""
    seen = [row for row in rows if not row.withheld and row.boxes is not None]
    pictures = {_name(row): BoxedImage(row.width, row.height, row.boxes or ()) for row in seen}
    tables = coco_json(pictures)
    urls = {row.licence: row.licence_url for row in seen}
    licence = {key: number for number, key in enumerate(sorted(urls), 1)}
    for image, row in zip(tables["images"], seen, strict=True):
        image.update(sha256=row.sha256, license=licence[row.licence], coco_url=row.source_url)
    licences = [{"id": licence[key], "name": key, "url": urls[key]} for key in licence]
    return {"info": {"description": f"Boxes of {name}"}, "licenses": licences, **tables}


def _name(row: PublishedRow) -> str:
    return row.path if row.path.endswith(row.file_name) else row.file_name


_TABLES = (MANIFEST, ISSUES, TAXONOMY, SPLITS_CSV, COCO, CROISSANT, CARD, SUMS, FOR_PEOPLE)
PUBLISHED = FolderKind("a published dataset", FACTS, (*_TABLES, PLOTS, DATA, *SPLITS))


def check_place(out: Path, dataset: Path) -> None:
    """Raise UserError unless `out` is absent, empty or an earlier published folder."""
    if out.is_symlink():
        raise UserError(f"--out {out} is a link; give a new or empty folder.")
    finish_folder(out, FACTS)
    PUBLISHED.check(out)
    here, there = dataset.resolve(), out.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UserError(
            f"--out {out} and the private dataset {dataset} lie one inside the other; give a "
            "folder elsewhere."
        )


def is_published(out: Path) -> bool:
    """Tell whether `publish` wrote this folder, which a kill may have left under its old name."""
    old = [path for path in leftovers(out) if path.suffix in (".old", ".whole")]
    return any((folder / FACTS).is_file() for folder in (out, *old))


@contextmanager
def cleared_place(out: Path) -> Iterator[None]:
    """Hold the folder around `out`, where one process at a time writes and renames.

    What a killed one left beside or within `out` is cleared away first, so that no forgotten copy
    outlives a take-down; where it was killed between its two renames, the old folder comes back.
    Raises UserError while another process writes there.
    """
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with only_writer(parent, "publish or take-down", wait_s=0):
        _clear_away(out)
        yield


def _clear_away(out: Path) -> None:
    finish_folder(out, FACTS)
    for path in leftovers(out):
        if path.name.endswith(".old") and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path)


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
    recipe = BuildSettings.saved(dataset / RECIPE)
    facts = PublishedFacts.from_settings(recipe, settings)
    import_mlcroissant()
    check_place(out, dataset)
    if not settings.unaudited:
        check_audited(dataset, records)
    withheld = withheld_of(dataset, records)
    if len(withheld) == len(records):
        reason, (_, detail) = _commonest(withheld), next(iter(withheld.values()))
        raise UserError(
            f"none of the {len(records)} images of {dataset} may be published (most frequent "
            f"reason: {reason}; first image: {detail.rstrip('.')}); set `licence` and `creator` "
            "in the recipe, or decide on flagged images in `skindx review`, and build again."
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
        raise UserError(f"{path} {clean.problem}; run `skindx build` again.")
    if clean.sha256 != sha256:
        raise UserError(
            f"{path} is not the image that the manifest names; delete the file and run `skindx "
            "build` again."
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
                f"{pub / row.path} is not the image that {pub}/manifest.parquet names; run `skindx "
                "publish` again."
            )
        if sha256 in stays:
            yield stays[sha256], data

"""The dataset folder: which one a build may write to, the rows of its manifest, and its tables."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.annotations import wrong_boxes
from skindx.data.boxes.box_file import refuse_all
from skindx.data.boxes.box_join import DatasetImage, join
from skindx.data.build.build_run import BuildRun
from skindx.data.copies.copy_records import COPIES, CopyRecord, write_copies
from skindx.data.copies.deduplicate import Distinct, LabelledImage
from skindx.data.decisions import Flag, Reason, stage_flags
from skindx.data.layout import MANIFEST, RECIPE, STORE, SUMMARY, TAXONOMY, recover, transaction
from skindx.data.ledger import read_ledger
from skindx.data.manifest import Issue, Record, write_issues, write_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.splits.freeze import Placements
from skindx.data.splits.split import assert_disjoint
from skindx.data.summary import BuildSummary, ClassCount
from skindx.taxonomy import Taxonomy


def make_records(
    run: BuildRun,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    by_sha: Mapping[str, Sequence[LabelledImage]],
    taxonomy: Taxonomy,
    *,
    placed: Placements,
) -> list[Record]:
    """Write down what is known of each kept image, in the taxonomy's order."""
    boxes = _boxes(run, kept, by_sha)
    rows = [
        Record(
            path=row.path,
            sha256=row.sha256,
            perceptual_hash=image.screened.perceptual_hash,
            width=image.screened.width,
            height=image.screened.height,
            label=image.label,
            group=groups[row.sha256],
            split=placed[groups[row.sha256]].split,
            boxes=boxes.get(row.sha256),
            source=row.source,
            source_url=row.url,
            page_url=row.page_url,
            licence=row.licence,
            creator=row.creator,
            attribution=row.attribution,
            retrieved=row.retrieved,
            skin_type=row.skin_type,
            fold=placed[groups[row.sha256]].fold,
            caption=next(filter(None, (p.row.caption for p in by_sha[row.sha256])), ""),
            confirmed_by=row.confirmed_by,
            age=row.age,
            sex=row.sex,
            site=row.site,
            laterality=row.laterality,
            modality=row.modality,
            patient=row.patient,
            study=row.study,
        )
        for image in kept
        for row in (image.row,)
    ]
    assert_disjoint([(record.group, record.split) for record in rows])
    order = {key: position for position, key in enumerate(taxonomy.keys)}
    return sorted(rows, key=lambda record: (order[record.label], record.sha256))


def _boxes(
    run: BuildRun, kept: Sequence[LabelledImage], by_sha: Mapping[str, Sequence[LabelledImage]]
) -> dict[str, tuple[Box, ...]]:
    """Return SHA-256 -> boxes of the images that people or the recipe's box file know.

    Boxes that a person called wrong are none, unless somebody has drawn others. The same bytes
    may have come under several names, and one of them is in the file.
    """
    drawn: dict[str, tuple[Box, ...]] = {}
    if run.boxes is not None:
        images = {
            image.row.sha256: DatasetImage(
                (image.screened.width, image.screened.height), run.out / image.row.path
            )
            for image in kept
        }
        names = ((p.row.sha256, p.row.url) for same in by_sha.values() for p in same)
        issue_names = ((issue.sha256, issue.url) for issue in run.issues if issue.sha256)
        joined = join(run.boxes, images, chain(names, issue_names), cut=True)
        if run.settings.boxes and run.settings.boxes.strict:
            refuse_all(run.settings.boxes.path, joined.problems())
        drawn = {each.sha256: each.image.boxes for each in joined.entries}
        run.box_counts = joined.counts()
        run.notes += run.box_counts.lines()
    wrong = wrong_boxes(run.out)
    right = {sha256: boxes for sha256, boxes in drawn.items() if sha256 not in wrong}
    return right | dict(run.drawn)


def count_by_source(
    keys: Sequence[str], images: Distinct, records: Sequence[Record], targets: Mapping[str, int]
) -> list[ClassCount]:
    """Count the classes `keys` in their order; an image that two sources gave counts for both."""
    given = Counter((image.label, image.row.source) for same in images for image in same)
    kept = Counter((record.label, record.source) for record in records)
    return [
        ClassCount(
            key,
            targets.get(key),
            {source: n for (label, source), n in sorted(given.items()) if label == key},
            {source: n for (label, source), n in sorted(kept.items()) if label == key},
        )
        for key in keys
    ]


def check_out(out: Path, settings: BuildSettings) -> None:
    """Raise UserError unless `out` is absent, empty, a dataset, or what a broken build left."""
    if out.is_symlink() or out.exists():
        if not out.is_dir():
            raise UserError(f"{out} is a file; give --out a new or empty folder.")
        recover(out)
        names = {entry.name for entry in out.iterdir()}
        begun = {MANIFEST, STORE} & names or any(name.startswith("ledger") for name in names)
        if names and not begun:
            raise UserError(
                f"{out} holds other files ({min(names)}) and no dataset; give --out a new or "
                f"empty folder."
            )
    for source in settings.sources:
        inside = source.folder
        if inside and out.resolve().is_relative_to(inside.resolve()):
            raise UserError(
                f"{out} lies in the source folder {inside}, so the next build would read it "
                f"as images; give --out a folder elsewhere."
            )


@contextmanager
def emptied_again(out: Path) -> Iterator[None]:
    """When the block refuses its input, leave `out` as it was if it was absent or empty.

    What was fetched or is known of any image stays: the next build goes on with it.
    """
    existed = out.exists()
    empty = not existed or not any(out.iterdir())
    try:
        yield
    except UserError:
        if empty and out.exists() and not any((out / STORE).glob("*/*")) and not read_ledger(out):
            for path in out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not existed:
                out.rmdir()
        raise


def write_dataset(
    out: Path,
    *,
    records: Sequence[Record],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    settings: BuildSettings,
    summary: BuildSummary,
    copies: Sequence[CopyRecord] | None,
    flags: Sequence[Flag],
    looked_for: Sequence[Reason],
    write_splits: Callable[[Path], None],
) -> None:
    """Write all tables beside the old ones, then put them in place together, all or none.

    Without `copies` there was no search, and an older table is deleted. `flags` take the place
    of older ones of the reasons `looked_for`.
    """
    with transaction(out) as staging:
        taxonomy.save(staging / TAXONOMY)
        settings.save(staging / RECIPE)
        write_issues(staging, issues)
        write_json(staging / SUMMARY, summary.as_json())
        write_splits(staging)
        if copies is not None:
            write_copies(staging / COPIES, copies)
        stage_flags(out, staging, flags, looked_for)
        write_manifest(staging, records)
    if copies is None:
        (out / COPIES).unlink(missing_ok=True)

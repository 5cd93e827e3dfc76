"""Build a dataset folder: acquire, screen, label, de-duplicate, group, split, write."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from skindx.core.atomic_files import entries, only_writer, write_json, write_text
from skindx.core.errors import UserError, needs_room
from skindx.core.progress import Progress, silent
from skindx.data.box import Box
from skindx.data.boxes.annotations import wrong_boxes
from skindx.data.boxes.box_file import refuse_all
from skindx.data.boxes.box_join import DatasetImage, join
from skindx.data.build.acquire import EMPTY_SOURCE, acquire
from skindx.data.build.build_run import BuildRun, open_run
from skindx.data.build.build_stages import (
    NOT_SKIN,
    clean,
    count_colours,
    drop_small_classes,
    flag_records,
    label_rows,
    screen_rows,
)
from skindx.data.build.copy_stage import count_copies, hold_swallowed
from skindx.data.copies.deduplicate import Distinct, LabelledImage
from skindx.data.copies.verified import CopyRecord, keep_stored, write_copies
from skindx.data.decisions import Flag, Reason, read_flags, replaced_flags, stage_flags
from skindx.data.labels import is_label
from skindx.data.layout import (
    BLOCKLIST,
    COPIES,
    MANIFEST,
    RECIPE,
    REPORT,
    STORE,
    SUMMARY,
    TAXONOMY,
    recover,
    sweep_store,
    transaction,
)
from skindx.data.ledger import LedgerRow, read_ledger
from skindx.data.manifest import Issue, Record, write_issues, write_manifest
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.removal.exclusions import Exclusions
from skindx.data.report.dataset_report import render_report
from skindx.data.screening.screen import remove_shards
from skindx.data.splits.freeze import (
    Placements,
    group_aliases,
    hold_splits,
    lacking_notes,
    place_groups,
    write_places,
)
from skindx.data.splits.given import completed, given_places, leak_notes
from skindx.data.splits.split import assert_disjoint
from skindx.data.summary import (
    BuildSummary,
    ClassCount,
    ClassNames,
    count_flagged,
    count_funnel,
    totals,
)
from skindx.data.typed_rows import shared_values
from skindx.taxonomy import Taxonomy
from skindx.workers.task_runner import open_runner


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
    rows = []
    for image in kept:
        row, group = image.row, groups[image.row.sha256]
        captions = (copy.row.caption for copy in by_sha[row.sha256])
        known = shared_values(row, Record) | {
            "label": image.label,
            "group": group,
            "caption": next(filter(None, captions), ""),
            "split": placed[group].split,
        }
        rows.append(
            Record(
                **known,
                source_url=row.url,
                perceptual_hash=image.screened.perceptual_hash,
                width=image.screened.width,
                height=image.screened.height,
                fold=placed[group].fold,
                boxes=boxes.get(row.sha256),
            )
        )
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
            raise UserError(f"--out {out} is a file; give a new or empty folder.")
        recover(out)
        names = {entry.name for entry in entries(out)}
        begun = {MANIFEST, STORE} & names or any(name.startswith("ledger") for name in names)
        if names and not begun:
            raise UserError(
                f"--out {out} has other files ({min(names)}) and is not a dataset; give a new or "
                "empty folder."
            )
    for source in settings.sources:
        inside = source.folder
        if inside and out.resolve().is_relative_to(inside.resolve()):
            raise UserError(
                f"--out {out} lies inside the source folder {inside}, so the next build would "
                "read its own images; give a folder elsewhere."
            )


@contextmanager
def emptied_again(out: Path) -> Iterator[None]:
    """When the block refuses its input, leave `out` as it was if it was absent or empty.

    What was fetched or is known of any image stays: the next build goes on with it.
    """
    existed = out.exists()
    empty = not existed or not entries(out)
    try:
        yield
    except UserError:
        if empty and out.exists() and not any((out / STORE).glob("*/*")) and not read_ledger(out):
            for path in entries(out):
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
        page = render_report(
            out,
            records,
            issues=issues,
            taxonomy=taxonomy,
            summary=summary.as_json(),
            flags=replaced_flags(read_flags(out), flags, looked_for),
            compared=copies is not None,
        )
        write_text(staging / REPORT, page)
    if copies is None:
        (out / COPIES).unlink(missing_ok=True)


__all__ = ["BuildSettings", "BuildSummary", "Progress", "build", "load_build_settings"]


def build(
    settings: BuildSettings,
    out: Path,
    *,
    resplit: bool = False,
    join_copies: bool = False,
    progress: Progress | None = None,
    cluster: str | None = None,
) -> BuildSummary:
    """Make the dataset folder `out`; every image found is in its manifest or its issues table.

    Beside the store and the ledger everything is written at the end: a failed build leaves no
    half dataset, and an older dataset in `out` stays until the new one is whole; one that found
    nothing at all leaves no folder. Images that `out` or `split.frozen` had placed keep their
    split, unless `resplit` places all again. Copies that these splits divide are reported;
    `join_copies` joins them and drops those outside the split nearest to training. Raises
    UserError for bad input, before anything is written where that can be known.

    `cluster` is the address of a Ray cluster that shares the work; None: this machine's cores.
    Both make the same dataset.
    """
    check_out(out, settings)
    with open_runner(cluster, out, settings.workers) as runner:
        run = open_run(settings, out, resplit=resplit, progress=progress or silent, runner=runner)
        run.join_copies = join_copies
        exclusions = Exclusions.read(out, _blocklists(settings, out), settings.dedup)
        with needs_room(out), emptied_again(out):
            out.mkdir(parents=True, exist_ok=True)
            with only_writer(out, "build or removal", wait_s=0):
                exclusions.purge()
                return _build(run, exclusions)


def _build(run: BuildRun, exclusions: Exclusions) -> BuildSummary:
    settings, out = run.settings, run.out
    acquired = acquire(
        settings.sources,
        settings.fetch,
        out,
        taxonomy=run.taxonomy,
        on_progress=partial(run.report, "acquire"),
    )
    run.notes += [row.detail for row in acquired if row.status == EMPTY_SOURCE]
    rows = exclusions.of_acquired(acquired)
    sound = screen_rows(run, rows)
    sound, run.issues = exclusions.of_screened(sound, run.issues, run.report)
    taxonomy, images = label_rows(run, sound)
    given = given_places(images, run.places)
    run.places = {**given, **run.places}
    grouped = clean(run, images)
    cleaned, groups = grouped.cleaned, grouped.groups
    run.report("split", 0, len(cleaned.kept))
    aliases = group_aliases(images, groups, run.keys)
    kept, rejected = exclusions.of_cleaned(cleaned)
    kept, held, conflicts = hold_splits(run.places, kept, aliases)
    run.issues += rejected + conflicts
    kept, dropped = drop_small_classes(run, kept, grouped, images)
    held = hold_swallowed(run, kept, grouped, held)
    run.notes += leak_notes(images, groups, given)
    held, notes = completed(settings.split, settings.seed, kept, groups, held=held, given=given)
    run.notes += notes
    train = {sha256 for sha256, place in given.items() if place.split == "train"}
    run.places = {name: place for name, place in run.places.items() if name not in train}
    placed = place_groups(settings.split, settings.seed, kept, groups, held)
    run.notes += lacking_notes(kept, groups, placed, settings.split)
    by_sha = {same[0].row.sha256: same for same in images}
    records = make_records(run, kept, groups, by_sha, taxonomy, placed=placed)
    flag_records(run, records, by_sha)
    colours = count_colours(run, records, by_sha)
    run.report("split", len(cleaned.kept), len(cleaned.kept))
    run.report("write", 0, len(rows))
    labels = [row.label for row in rows if is_label(row.label, run.taxonomy)]
    names = ClassNames(taxonomy, labels, closed=run.taxonomy is not None)
    funnel = count_funnel(
        names,
        rows=rows,
        sound=(row.label for row, _ in sound),
        distinct=(image.label for image in cleaned.kept),
        records=records,
        issues=run.issues,
    )
    gone = [row for row in funnel if not row.kept and row.label not in dropped]
    summary = BuildSummary(
        name=settings.name,
        found=len(rows),
        dropped_classes=dropped,
        absent_classes=tuple(row.label for row in gone if not row.looked_for),
        lost_classes={row.label: row.why for row in gone if row.looked_for},
        exact_conflicts=cleaned.exact_conflicts,
        near_conflicts=cleaned.near_conflicts,
        notes=tuple(run.notes),
        funnel=funnel,
        boxes=run.box_counts,
        flagged=count_flagged(run.flags),
        colours=colours,
        counts=tuple(count_by_source(taxonomy.keys, images, records, settings.targets)),
        copies=count_copies(grouped, kept, {record.sha256: record.split for record in records}),
        **totals(records, run.issues),
    )
    write_dataset(
        out,
        records=records,
        issues=run.issues,
        taxonomy=taxonomy.subset({record.label for record in records}),
        settings=settings,
        summary=summary,
        copies=None if settings.dedup.copies == "off" else grouped.copies,
        flags=run.flags,
        looked_for=[NOT_SKIN],
        write_splits=lambda folder: write_places(folder, aliases, groups, placed, run.places),
    )
    sweep_store(out, _named(out, rows))
    keep_stored(out)
    remove_shards(out)
    run.report("write", len(rows), len(rows))
    return summary


def _blocklists(settings: BuildSettings, out: Path) -> list[Path]:
    frozen = settings.split.frozen
    folders = [out, frozen] if frozen and frozen.is_dir() else [out]
    shared = [settings.blocklist] if settings.blocklist else []
    return [*shared, *(folder / BLOCKLIST for folder in folders)]


def _named(out: Path, rows: Sequence[LedgerRow]) -> set[str]:
    return {row.path for row in (*rows, *read_ledger(out)) if row.path}

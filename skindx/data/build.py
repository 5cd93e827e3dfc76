"""From sources to a dataset folder: acquire, screen, label, de-duplicate, group, split, write."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.data.acquire import acquire
from skindx.data.boxes import read_boxes
from skindx.data.boxes.annotations import accepted, read_annotations
from skindx.data.dataset_folder import check_out, write_dataset
from skindx.data.groups import GroupKeys
from skindx.data.manifest import SPLITS, Record
from skindx.data.progress import Progress, silent
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.stages import (
    Run,
    clean,
    drop_small_classes,
    label_rows,
    look_at_folders,
    make_records,
    screen_rows,
)
from skindx.data.summary import BuildSummary
from skindx.data.targets import count_by_source
from skindx.taxonomy import Taxonomy, load_taxonomy

__all__ = ["BuildSettings", "BuildSummary", "Progress", "build", "load_build_settings"]


def build(settings: BuildSettings, out: Path, *, progress: Progress | None = None) -> BuildSummary:
    """Make the dataset folder `out`; every picture found is in its manifest or its issues table.

    Beside the store and the ledger everything is written at the end: a failed build leaves no
    half dataset, and an older dataset in `out` stays until the new one is whole. Raises
    UserError for bad input, before anything is written where that can be known.
    """
    check_out(out, settings)
    run = Run(
        settings,
        out,
        progress or silent,
        load_taxonomy(settings.taxonomy) if settings.taxonomy else None,
        GroupKeys(settings.groups),
        read_boxes(settings.boxes) if settings.boxes else {},
        accepted(read_annotations(out)),
    )
    look_at_folders(run)
    rows = acquire(
        settings.sources, settings.fetch, out, on_progress=partial(run.report, "acquire")
    )
    taxonomy, pictures = label_rows(run, screen_rows(run, rows))
    cleaned, groups = clean(run, pictures)
    kept, dropped = drop_small_classes(run, cleaned.kept, groups, pictures)
    records = make_records(run, kept, groups, {s[0].row.sha256: s for s in pictures}, taxonomy)
    absent = set(taxonomy.keys) - {same[0].label for same in pictures}
    sizes = Counter(record.group for record in records)
    summary = BuildSummary(
        name=settings.name,
        found=len(rows),
        kept=len(records),
        issues=dict(Counter(issue.reason for issue in run.issues).most_common()),
        splits=_count(records, taxonomy),
        dropped_classes=dropped,
        absent_classes=tuple(key for key in taxonomy.keys if key in absent),
        exact_conflicts=cleaned.exact_conflicts,
        near_conflicts=cleaned.near_conflicts,
        groups=len(sizes),
        largest_group=max(sizes.values()),
        boxed=sum(record.boxes is not None for record in records),
        notes=tuple(run.notes),
        counts=tuple(count_by_source(taxonomy.keys, pictures, records, settings.targets)),
    )
    write_dataset(
        out,
        records=records,
        issues=run.issues,
        taxonomy=taxonomy.subset({record.label for record in records}),
        settings=settings,
        summary=summary,
    )
    return summary


def _count(records: Sequence[Record], taxonomy: Taxonomy) -> dict[str, dict[str, int]]:
    counts = Counter((record.label, record.split) for record in records)
    labels = {record.label for record in records}
    return {
        key: {split: counts[key, split] for split in SPLITS}
        for key in taxonomy.keys
        if key in labels
    }

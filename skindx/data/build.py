"""From sources to a dataset folder: acquire, screen, label, de-duplicate, group, split, write."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.data.acquire import acquire
from skindx.data.boxes import read_coco
from skindx.data.dataset_folder import check_out, write_dataset
from skindx.data.engine import Engine, open_engine
from skindx.data.engine.shards import remove_shards
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
from skindx.taxonomy import Taxonomy, load_taxonomy

__all__ = ["BuildSettings", "BuildSummary", "Progress", "build", "load_build_settings"]


def build(
    settings: BuildSettings,
    out: Path,
    *,
    progress: Progress | None = None,
    cluster: str | None = None,
) -> BuildSummary:
    """Make the dataset folder `out`; every picture found is in its manifest or its issues table.

    Beside the store and the ledger everything is written at the end: a failed build leaves no
    half dataset, and an older dataset in `out` stays until the new one is whole. Raises
    UserError for bad input, before anything is written where that can be known.

    `cluster` is the address of a Ray cluster that shares the work; None: this machine's cores.
    Both make the same dataset.
    """
    check_out(out, settings)
    with open_engine(cluster, out, settings.workers) as engine:
        return _build(settings, out, progress or silent, engine)


def _build(settings: BuildSettings, out: Path, progress: Progress, engine: Engine) -> BuildSummary:
    run = Run(
        settings,
        out,
        progress,
        engine,
        load_taxonomy(settings.taxonomy) if settings.taxonomy else None,
        GroupKeys(settings.groups),
        read_coco(settings.boxes) if settings.boxes else {},
    )
    look_at_folders(run)
    rows = acquire(
        settings.sources,
        settings.fetch,
        out,
        engine=engine,
        on_progress=partial(run.report, "acquire"),
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
    )
    write_dataset(
        out,
        records=records,
        issues=run.issues,
        taxonomy=taxonomy.subset({record.label for record in records}),
        settings=settings,
        summary=summary,
    )
    remove_shards(out)
    return summary


def _count(records: Sequence[Record], taxonomy: Taxonomy) -> dict[str, dict[str, int]]:
    counts = Counter((record.label, record.split) for record in records)
    labels = {record.label for record in records}
    return {
        key: {split: counts[key, split] for split in SPLITS}
        for key in taxonomy.keys
        if key in labels
    }

"""From sources to a dataset folder: acquire, screen, label, de-duplicate, group, split, write."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.core.atomic_files import only_writer
from skindx.core.errors import needs_room
from skindx.core.progress import Progress, silent
from skindx.data.build.acquire import EMPTY_SOURCE, acquire
from skindx.data.build.build_run import BuildRun, open_run
from skindx.data.build.build_stages import (
    REASONS,
    clean,
    drop_small_classes,
    flag_records,
    label_rows,
    screen_rows,
)
from skindx.data.build.copy_stage import count_copies, hold_swallowed
from skindx.data.build.write_stage import (
    check_out,
    count_by_source,
    emptied_again,
    make_records,
    write_dataset,
)
from skindx.data.copies.verified import keep_stored
from skindx.data.layout import BLOCKLIST, sweep_store
from skindx.data.ledger import LedgerRow, read_ledger
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.removal.exclusions import Exclusions
from skindx.data.screening.screen import remove_shards
from skindx.data.splits.freeze import (
    group_aliases,
    hold_splits,
    place_groups,
    untrained_notes,
    write_places,
)
from skindx.data.summary import BuildSummary, ClassNames, count_flagged, count_funnel, totals
from skindx.workers.task_runner import open_runner

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
        runner=run.runner,
        on_progress=partial(run.report, "acquire"),
    )
    run.notes += [row.detail for row in acquired if row.status == EMPTY_SOURCE]
    rows = exclusions.of_acquired(acquired)
    sound = screen_rows(run, rows)
    sound, run.issues = exclusions.of_screened(sound, run.issues, run.report)
    taxonomy, images = label_rows(run, sound)
    grouped = clean(run, images)
    cleaned, groups = grouped.cleaned, grouped.groups
    run.report("split", 0, len(cleaned.kept))
    aliases = group_aliases(images, groups, run.keys)
    kept, rejected = exclusions.of_cleaned(cleaned)
    kept, held, conflicts = hold_splits(run.places, kept, aliases)
    run.issues += rejected + conflicts
    kept, dropped = drop_small_classes(run, kept, grouped, images)
    held = hold_swallowed(run, kept, grouped, held)
    placed = place_groups(settings.split, settings.seed, kept, groups, held)
    run.notes += untrained_notes(kept, groups, placed)
    by_sha = {same[0].row.sha256: same for same in images}
    records = make_records(run, kept, groups, by_sha, taxonomy, placed=placed)
    flag_records(run, records, by_sha)
    run.report("split", len(cleaned.kept), len(cleaned.kept))
    run.report("write", 0, len(rows))
    names = ClassNames(taxonomy, [row.label for row in rows], closed=run.taxonomy is not None)
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
        looked_for=REASONS if settings.screen.ood else REASONS[:1],
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

"""A build's state, which its stages pass on, and all that it starts from."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.progress import Progress
from skindx.core.settings_base import read_yaml
from skindx.data.box import Box
from skindx.data.boxes.annotations import accepted, read_annotations, wrong_boxes
from skindx.data.boxes.box_file import BoxFile
from skindx.data.boxes.box_formats import read_boxes
from skindx.data.boxes.box_join import BoxCounts
from skindx.data.build.acquire import web_sources
from skindx.data.copies.hash_links import import_kernels
from skindx.data.crawl.crawl_process import check_sources
from skindx.data.decisions import Flag
from skindx.data.labels import is_label, map_labels, taxonomy_of
from skindx.data.layout import MANIFEST, RECIPE
from skindx.data.manifest import Issue
from skindx.data.recipe import BuildSettings
from skindx.data.splits.freeze import SPLITS_TABLE, Placements, fitting_folds, read_places
from skindx.data.splits.groups import GroupKeys
from skindx.taxonomy import Taxonomy, load_taxonomy, normalise
from skindx.taxonomy.label_matches import check_urgencies, with_urgencies
from skindx.workers.task_runner import TaskRunner

OLDER_DEFAULTS: dict[tuple[str, str], Any] = {("screen", "not_skin"): "off"}
"""Keys of the recipe -> the value that is as if the setting were not there."""


@dataclass(slots=True)
class BuildRun:
    """The settings of a build, what it starts from, and what its stages note."""

    settings: BuildSettings
    out: Path
    report: Progress
    runner: TaskRunner
    taxonomy: Taxonomy | None
    keys: GroupKeys
    boxes: BoxFile | None
    drawn: Mapping[str, tuple[Box, ...]]
    """Boxes by SHA-256 that people drew after an earlier build; they win over `boxes`."""
    places: Placements
    """Splits and groups of earlier builds."""
    join_copies: bool = False
    """Join copies also where earlier builds placed them in different splits."""
    issues: list[Issue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    """Images of the dataset at which a person should look."""
    box_counts: BoxCounts | None = None
    """What became of the box file."""


def open_run(
    settings: BuildSettings, out: Path, *, resplit: bool, progress: Progress, runner: TaskRunner
) -> BuildRun:
    """Read all that a build starts from; mistakes are reported before anything is made."""
    taxonomy = load_taxonomy(settings.taxonomy) if settings.taxonomy else None
    if taxonomy:
        taxonomy = with_urgencies(taxonomy, settings.urgency)
        check_urgencies(taxonomy)
        check_targets(settings.targets, taxonomy)
    import_kernels()  # without them nothing need be fetched first
    sources = tuple(source.for_taxonomy(taxonomy) for source in settings.sources)
    settings = with_modalities(settings.model_copy(update={"sources": sources}))
    settings, older = as_before(settings, out)
    boxes = settings.boxes
    run = BuildRun(
        settings,
        out,
        progress,
        runner,
        taxonomy,
        GroupKeys(settings.groups),
        read_boxes(boxes) if boxes and (boxes.path.exists() or not boxes.optional) else None,
        accepted(read_annotations(out), wrong_boxes(out)),
        {} if resplit else fitting_folds(_places(settings, out), settings.split.folds),
    )
    run.notes += older
    if web := web_sources(settings.sources):
        check_sources(web, settings.fetch)
    look_at_labels(run)
    return run


def look_at_labels(run: BuildRun) -> None:
    """Find what is wrong with folders and classes before the first image is copied or fetched."""
    sources = sorted(run.settings.sources, key=lambda source: not source.knows_labels)
    whole = all(source.knows_labels for source in sources)
    labels: list[str] = []
    for source in sources:
        if source.knows_labels or not run.taxonomy:
            preview = source.preview()
            given = [one for one in preview.labels if is_label(one, run.taxonomy)]
            labels += [one for one in given if source.knows_labels or normalise(one)]
            run.notes += preview.notes
    if not run.taxonomy:
        _look_at_classes(run, labels, whole=whole)
    elif whole:
        map_labels(labels, run.taxonomy, run.settings.min_known)


def _look_at_classes(run: BuildRun, labels: Sequence[str], *, whole: bool) -> None:
    """Raise UserError for what no taxonomy could be made of; `whole`: these are all labels.

    Urgencies of classes that are not known yet are left for later.
    """
    urgencies = run.settings.urgency
    if not whole:
        known = {normalise(label) for label in labels}
        urgencies = {label: tier for label, tier in urgencies.items() if normalise(label) in known}
    if labels:
        taxonomy_of(labels, run.settings.name, urgencies)


def _places(settings: BuildSettings, out: Path) -> Placements:
    """Return what `out` has placed; what `split.frozen` says of the same image goes before."""
    built = any((out / name).exists() for name in (MANIFEST, SPLITS_TABLE))
    before = read_places(out) if built else {}
    frozen = settings.split.frozen
    return {**before, **(read_places(frozen) if frozen else {})}


def as_before(settings: BuildSettings, out: Path) -> tuple[BuildSettings, list[str]]:
    """Return the settings for a rebuild of `out`, and a note for each that stays as it was.

    A dataset that was built before a setting existed, or with the value that is as if it did not,
    keeps what it did, unless the user sets it. `out` need not exist; only a recipe that a build
    left there counts, not the user's own.
    """
    recipe = out / RECIPE
    if not recipe.exists():
        return settings, []
    stored, notes = read_yaml(recipe), []
    for (part, key), value in OLDER_DEFAULTS.items():
        now, then = getattr(settings, part), stored.get(part)
        new = getattr(now, key)
        changed = isinstance(then, dict) and then.get(key, value) != value
        if changed or key in now.model_fields_set or new == value:
            continue
        settings = settings.model_copy(update={part: now.model_copy(update={key: value})})
        notes.append(
            f"{part}.{key} stays {value}, as {out.name} was built; --set {part}.{key}={new} "
            f"switches it on."
        )
    return settings, notes


def with_modalities(settings: BuildSettings) -> BuildSettings:
    """Return the settings with the modality that tables with a column `modality` state.

    What a recipe says of a source wins. Raises UserError for a table that cannot be read.
    """
    sources = tuple(
        source
        if (modality := source.stated_modality()) == source.modality
        else source.model_copy(update={"modality": modality})
        for source in settings.sources
    )
    return settings.model_copy(update={"sources": sources})


def check_targets(targets: Mapping[str, int], taxonomy: Taxonomy) -> None:
    """Raise UserError for a target of what is no class: nothing would ever be counted for it."""
    for label in sorted(set(targets) - set(taxonomy.keys)):
        match = taxonomy.find(label)
        near = [match.key] if match else difflib.get_close_matches(label, taxonomy.keys, cutoff=0.3)
        hint = (
            f"; write {near[0]!r}"
            if match
            else f" (nearest: {', '.join(near)}); correct targets"
            if near
            else "; correct targets"
        )
        raise UserError(
            f"`targets` in the recipe names {label!r}, which is not a class of the taxonomy "
            f"{taxonomy.name}{hint}."
        )

"""State that the stages of one build pass on."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.progress import Progress
from skindx.core.settings_base import read_yaml
from skindx.data.box import Box
from skindx.data.boxes.box_file import BoxFile
from skindx.data.boxes.box_join import BoxCounts
from skindx.data.copies.deduplicate import Distinct
from skindx.data.decisions import Flag
from skindx.data.layout import RECIPE
from skindx.data.manifest import Issue, Record
from skindx.data.origin import Modality
from skindx.data.recipe import BuildSettings
from skindx.data.sources.columns import cell, read_table
from skindx.data.sources.files import FilesSource
from skindx.data.sources.table import TableSource
from skindx.data.splits.freeze import Placements
from skindx.data.splits.groups import GroupKeys
from skindx.data.summary import ClassCount
from skindx.taxonomy import Taxonomy
from skindx.workers.task_runner import TaskRunner


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


# A dataset that was built before a setting existed keeps what it did, unless the user sets it.
#
# So does one that was built with that value: else the next build after the first would change it.

BEFORE: dict[tuple[str, str], Any] = {("screen", "not_skin"): "off"}
"""Keys of the recipe -> the value that is as if the setting were not there."""


def as_before(settings: BuildSettings, out: Path) -> tuple[BuildSettings, list[str]]:
    """Return the settings for a rebuild of `out`, and a note for each that stays as it was.

    `out` need not exist; only a recipe that a build left there counts, not the user's own.
    """
    recipe = out / RECIPE
    if not recipe.exists():
        return settings, []
    stored, notes = read_yaml(recipe), []
    for (part, key), value in BEFORE.items():
        own, then = getattr(settings, part), stored.get(part)
        changed = isinstance(then, dict) and then.get(key, value) != value
        if changed or key in own.model_fields_set or getattr(own, key) == value:
            continue
        new = getattr(own, key)
        settings = settings.model_copy(update={part: own.model_copy(update={key: value})})
        notes.append(
            f"{part}.{key} stays {value}, as {out.name} was built; --set {part}.{key}={new} "
            f"switches it on."
        )
    return settings, notes


# The modality of a source whose table states it line by line.

_DERMOSCOPIC = re.compile(r"derm(at)?os[ck]op|epilumin")
_CLINICAL = re.compile(r"clinic|klinisch|close.?up|overview|macro|camera|phone|photo|tbp")


def with_modalities(settings: BuildSettings) -> BuildSettings:
    """Return the settings with the modality that tables with a column `modality` state.

    What a recipe says of a source wins. Raises UserError for a table that cannot be read.
    """
    sources = tuple(
        source.model_copy(update={"modality": _stated(source)})
        if isinstance(source, FilesSource | TableSource)
        and source.columns.modality
        and not source.modality
        else source
        for source in settings.sources
    )
    return settings.model_copy(update={"sources": sources})


def _stated(source: FilesSource | TableSource) -> Modality:
    """Return what all lines together say; "" where a line says nothing that is known."""
    column = source.columns.modality
    words = {cell(line.get(column)).casefold() for line in read_table(source.path, source.columns)}
    kinds = {modality_of(text) for text in words}
    if not kinds or "" in kinds:
        return ""
    return kinds.pop() if len(kinds) == 1 else "mixed"


def modality_of(text: str) -> Modality:
    """Return the modality that a cell names, such as the ISIC archive's `image_type`."""
    dermoscopic, clinical = _DERMOSCOPIC.search(text), _CLINICAL.search(text)
    if dermoscopic and clinical:
        return "mixed"
    return "dermoscopic" if dermoscopic else "clinical" if clinical else ""


# Images from each source and class, against the number that a recipe aims at.


def check_targets(targets: Mapping[str, int], taxonomy: Taxonomy) -> None:
    """Raise UserError for a target of what is no class: nothing would ever be counted for it."""
    for label in sorted(set(targets) - set(taxonomy.keys)):
        match = taxonomy.find(label)
        near = [match.key] if match else difflib.get_close_matches(label, taxonomy.keys, cutoff=0.3)
        hint = f"; write {near[0]!r}" if match else f" (nearest: {', '.join(near)})" if near else ""
        raise UserError(f"targets names {label!r}, which is no class of {taxonomy.name}{hint}.")


def count_by_source(
    keys: Sequence[str], images: Distinct, records: Sequence[Record], targets: Mapping[str, int]
) -> list[ClassCount]:
    """Count the classes `keys` in their order; an image that two sources gave counts for both."""
    found = Counter((image.label, image.row.source) for same in images for image in same)
    kept = Counter((record.label, record.source) for record in records)
    return [
        ClassCount(
            key,
            targets.get(key),
            {source: n for (label, source), n in sorted(found.items()) if label == key},
            {source: n for (label, source), n in sorted(kept.items()) if label == key},
        )
        for key in keys
    ]

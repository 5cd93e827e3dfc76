"""State that the stages of one build pass on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skindx.core.progress import Progress
from skindx.data.box import Box
from skindx.data.boxes.box_file import BoxFile
from skindx.data.boxes.joining import BoxCounts
from skindx.data.decisions import Flag
from skindx.data.manifest import Issue
from skindx.data.recipe import BuildSettings
from skindx.data.runner import TaskRunner
from skindx.data.splits.freeze import Placements
from skindx.data.splits.groups import GroupKeys
from skindx.taxonomy import Taxonomy


@dataclass(slots=True)
class Run:
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

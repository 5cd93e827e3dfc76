"""What the sources of a proposed recipe hold: classes, groups and facts, before anything is built.

Nothing is copied. A large table is read in part, and what is said of it is then of that part.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.placeholders import is_placeholder
from skindx.data.recipe import BuildSettings
from skindx.data.sources.columns import first_there
from skindx.data.sources.files import FilesSource, TableOfFiles
from skindx.data.sources.folder import FolderFile, FolderSource, look_at_folder
from skindx.data.sources.image_source import NO_LABEL, LocalSource, WebSource
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import LEFT_OUT, TableLog
from skindx.data.tables.reader import read_table
from skindx.data.tables.shape import shaped_lines

LARGE_BYTES = 32 << 20
"""A larger table is read in part."""
_PART = 8_000
"""Lines of a large table that are read."""
_FACTS = {"age": "age", "sex": "sex", "site": "site", "skin_type": "skin type"}
_FACTS |= {"confirmed_by": "how the label was confirmed"}


@dataclass
class SourcesLook:
    """What all sources of a recipe hold together."""

    labels: Counter[str] = field(default_factory=Counter)
    files: list[FolderFile] = field(default_factory=list)
    """Images that are there, those of archives under the archive's path."""
    merged: tuple[str, ...] = ()
    groups: int = 0
    ungrouped: int = 0
    facts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    share: float = 1.0
    """The share of the lines that were read."""

    def lines(self) -> list[str]:
        """Return groups, facts and what is odd, in sentences."""
        images = self.labels.total()
        said = []
        if self.groups:
            alone = f"; {counted(self.ungrouped, 'image')} in none" if self.ungrouped else ""
            said.append(f"{counted(self.groups, 'group')} that no split divides{alone}.")
        if self.facts:
            known = ", ".join(
                f"{_FACTS[name]} ({100 * count / max(images, 1):.0f} %)"
                for name, count in self.facts.items()
            )
            said.append(f"What the source says of its images: {known}.")
        if self.share < 1:
            said.append(
                f"About {self.share:.0%} of the table's lines were read for this; the build reads "
                "all of them."
            )
        return [*said, *self.notes]


def look_at_sources(raw: Mapping[str, Any], name: str, contents: FolderContents) -> SourcesLook:
    """Look at all sources of a recipe. Raises UserError for what no dataset can come from."""
    settings = BuildSettings.parse({"name": name, **raw})
    look = SourcesLook()
    names: list[str] = []
    for number, source in enumerate(settings.sources):
        if isinstance(source, FolderSource):
            _look_at_classes(source, look, names)
        elif isinstance(source, TableOfFiles):
            names += (f"{number} {one}" for one in _look_at_lines(source, look, contents))
        else:
            _look_at_preview(source, look)
    look.groups, alone = _count_groups(names)
    look.ungrouped += alone
    for table in settings.groups.tables:
        lines = read_table(first_there(table.path, table.or_paths), table, table)
        known = {Path(file.path).stem: "" for file in look.files}
        of = {
            cell(line.get(table.group_column))
            for line in lines
            if PurePosixPath(cell(line.get(table.key_column))).stem in known
        }
        look.groups, look.ungrouped = len(of - {""}), 0
    if not look.labels:
        raise UserError(
            f"{contents.root} has no image that the recipe can "
            f"use{'; ' + look.notes[0] if look.notes else ''}; check that the images are in this "
            "folder."
        )
    return look


def _look_at_classes(source: FolderSource, look: SourcesLook, names: list[str]) -> None:
    from skindx.data.name_patterns import first_groups

    layout = look_at_folder(source, OPENED)
    stored = [file for file in layout.files if file.status == "stored"]
    look.labels.update(file.label for file in stored)
    look.files += layout.files
    look.merged = (*look.merged, *layout.merged)
    if source.group_pattern:
        found = first_groups(source.group_pattern, [file.path.name for file in stored])
        names += (found.get(file.path.name) or "" for file in stored)


OPENED = 400
"""Files of a folder that are opened at most."""


def _look_at_preview(source: LocalSource | WebSource, look: SourcesLook) -> None:
    preview = source.preview()
    look.labels.update(preview.labels)
    look.notes += preview.notes


def _look_at_lines(
    source: TableOfFiles, look: SourcesLook, contents: FolderContents
) -> Iterable[str]:
    """Add the lines of a table; yield what each image belongs to."""
    log = TableLog()
    lines = _lines(source, look, log)
    paths = _paths(contents)
    root = source.root.resolve()
    top = contents.root.resolve()
    below = root.relative_to(top).as_posix() if root != top and top in root.parents else ""
    column = source.known_columns.label
    absent: list[str] = []
    left: Counter[str] = Counter()
    for line in lines:
        if LEFT_OUT in line:
            left[line[LEFT_OUT][0]] += 1
            continue
        file, label = source.file_of(line), cell(line.get(column))
        if not label:
            left[NO_LABEL[0]] += 1
        elif (f"{below}/{file}" if below else file) not in paths and not source._has(file):
            absent.append(file)
        else:
            look.labels[label] += 1
            look.files.append(FolderFile(root / file, label, "stored"))
            known = source.known(line)
            look.facts.update(one for one in _FACTS if known.get(one) not in (None, "", 0.0))
            yield known["group"]
    look.notes += log.all_notes(source.table)
    if absent:
        look.notes.append(
            f"{source.table}: {len(absent):,} of its lines name files that are not there, "
            f"such as {absent[0]}."
        )
    for status, count in left.items():
        look.notes.append(f"{source.table}: {counted(count, 'line')} left out ({status}).")


def _lines(source: TableOfFiles, look: SourcesLook, log: TableLog) -> list[dict[str, Any]]:
    size = source.table.stat().st_size if source.table.is_file() else 0
    if size < LARGE_BYTES or not isinstance(source, FilesSource):
        return source.lines()
    lines = shaped_lines(
        source.table,
        source.columns,
        source,
        log,
        label=source.columns.label,
        images=source.images,
        file=source.columns.file,
        read=lambda wanted: itertools.islice(read_table(source.table, wanted, source, log), _PART),
    )
    if log.lines >= _PART:
        with source.table.open("rb") as file:
            head = file.read(1 << 20)
        look.share = min(1.0, _PART * len(head) / max(1, head.count(b"\n")) / size)
        log.lines = 0
    return lines


def _paths(contents: FolderContents) -> frozenset[str]:
    found = (*contents.images.items(), *contents.packed.items())
    return frozenset(
        f"{folder}/{name}" if folder else name for folder, names in found for name in names
    )


def _count_groups(names: Iterable[str]) -> tuple[int, int]:
    """Return how many groups images are in, and how many images in none.

    An image may belong to several things, one a line; what shares any of them is one group.
    """
    parent: dict[str, str] = {}

    def top(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    alone = 0
    for each in names:
        source, _, text = each.partition(" ")
        keys = [f"{source} {one}" for one in text.split("\n") if one and not is_placeholder(one)]
        if not keys:
            alone += 1
        for key in keys:
            parent[top(key)] = top(keys[0])
    tops = {top(name) for name in parent}
    return len(tops), alone if tops else 0

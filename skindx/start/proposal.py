"""What a recipe for a folder may say: a known layout, a table of images, or folders of classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.layouts.image_places import ImageIndex
from skindx.data.layouts.known_layouts import KnownLayout, LayoutMatch, known_layouts, recognised
from skindx.data.placeholders import is_placeholder
from skindx.data.tables.cells import cell
from skindx.data.tables.reader import read_table

_LARGE_BYTES = 32 << 20
"""A larger table is looked up by its first lines alone."""


def nobody(option: str, question: str, choices: Sequence[str]) -> str:
    """Answer nothing: there is no person to ask."""
    return ""


@dataclass(frozen=True)
class Wishes:
    """What options say of a folder."""

    dataset: str | None = None
    """The name of a layout; none: no known layout counts; None: what the folder looks like."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """What a column holds (label, image, patient ...) -> its name."""
    classes: dict[str, str] = field(default_factory=dict)
    """What a label means: 1 -> melanoma."""
    ask: Callable[[str, str, Sequence[str]], str] = nobody
    """Asks a person: option, question, choices -> the answer; "" where nobody can be asked."""


NO_WISHES = Wishes()


@dataclass(frozen=True)
class Proposal:
    """Sources and other parts of a recipe, and why."""

    raw: Mapping[str, Any]
    lines: tuple[str, ...] = ()
    """What was taken and why, in sentences."""
    layout: KnownLayout | None = None
    name: str = ""
    """The layout's name."""

    @property
    def plain(self) -> bool:
        """Tell whether it is one folder of class folders, of which nothing else is known."""
        [first, *others] = self.raw["sources"]
        return not self.layout and not others and first["kind"] == "folder"


def known_layout(contents: FolderContents, wishes: Wishes) -> LayoutMatch | None:
    """Return the layout that a folder has. Raises UserError where it has several, or another."""
    folder = contents.root
    if wishes.dataset in ("none", "folders"):
        return None
    if wishes.dataset and wishes.dataset not in known_layouts():
        raise UserError(
            f"--dataset {wishes.dataset!r} is not a dataset that skindx knows; run `skindx "
            "datasets` for the list of names."
        )
    matches = recognised(contents)
    if wishes.dataset:
        matches = [match for match in matches if match.name == wishes.dataset]
        if not matches:
            raise UserError(
                f"{folder} does not have the files of {wishes.dataset}; run `skindx datasets "
                f"{wishes.dataset}` for the list of its files."
            )
    if len(matches) > 1:
        names = " and ".join(match.layout.title for match in matches)
        options = " or ".join(f"--dataset {match.name}" for match in matches)
        raise UserError(
            f"{folder} has several datasets, {names}; give the folder of one of them, or {options}."
        )
    return matches[0] if matches else None


def of_layout(match: LayoutMatch, wishes: Wishes, contents: FolderContents) -> Proposal:
    raw = match.recipe()
    raw["sources"] = [with_places(source, match, contents, wishes) for source in raw.pop("sources")]
    layout = match.layout
    about = ", ".join(filter(None, (layout.counts, _licence(layout))))
    by = " and ".join(sorted(head.path.name for head in match.heads.values()))
    why = f" by the columns of {by}" if by else " by its folders"
    lines = [f"{contents.root} is {layout.title} ({about}){why}."]
    lines += [f"Known fault: {fault}" for fault in layout.faults]
    return Proposal(raw, tuple(lines), layout, match.name)


def _licence(layout: KnownLayout) -> str:
    return "no licence is known" if layout.licence == "unknown" else layout.licence


def with_places(
    source: Mapping[str, Any], match: LayoutMatch, contents: FolderContents, wishes: Wishes
) -> dict[str, Any]:
    """Return a source of a layout with the places of its images, and with wished labels."""
    source = {**source}
    if wishes.classes:
        source["labels"] = {**source.get("labels", {}), **wishes.classes}
    if source["kind"] != "files" or "files" in source:
        return source
    table = Path(source["path"])
    columns = [one["file"] for one in source.get("images", ())] or [source["columns"]["file"]]
    also = source["columns"].get("also", {})
    named = [(column, *also.get(column, ())) for column in columns]
    cells = [text for names in named for text in _cells(table, names, source, match)]
    places = ImageIndex(contents).places(cells)
    if not places.there:
        where = " or in ".join(map(str, (contents.root, *contents.archives[:3])))
        raise UserError(
            f"{table} names {len(cells):,} images of {match.layout.title}, but none of them is in "
            f"{where}; put the images there ({match.layout.download})"
        )
    return source | places.settings(contents.root, table)


def _cells(
    table: Path, names: tuple[str, ...], source: Mapping[str, Any], match: LayoutMatch
) -> list[str]:
    """Return the cells that name images: all of them, or the first ones of a large table."""
    head = next((one for one in match.heads.values() if one.path == table), None)
    if head and table.is_file() and table.stat().st_size > _LARGE_BYTES:
        column = next((one for one in names if one in head.columns), "")
        return head.cells(column)
    from skindx.data.sources.files import FilesSource

    parsed = FilesSource.parse({**source, "kind": "files"})
    wanted = _OneColumn(names[0], {names[0]: names[1:]})
    lines = read_table(table, wanted, parsed)
    return [text for line in lines if not is_placeholder(text := cell(line.get(names[0])))]


@dataclass(frozen=True)
class _OneColumn:
    name: str
    also: Mapping[str, tuple[str, ...]]

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.name,)

    def check(self, path: Path, existing: object) -> None:
        """Any table will do: one without the column names no image."""

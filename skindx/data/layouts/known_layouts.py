"""The known layouts: their settings, and which of them a folder has."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx.core.text import folded_name
from skindx.data.layouts.folder_contents import IMAGE_ENDINGS, FolderContents, TableHead

LAYOUTS = Path(__file__).parent
"""The folder of the layouts' files, one a dataset."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_OPTIONAL = ("groups", "boxes", "split")
"""Parts of a recipe that are left out where what they name is not there."""


class LayoutMark(Settings):
    """A table, a file or a folder by which a layout is recognised, and that its recipe names."""

    columns: tuple[str, ...] = ()
    """Columns that a table has, under any name of the file; `a|b` is either of two."""
    name: str = ""
    """Pattern of the file's name, such as *Training*; its case does not count."""
    path: str = ""
    """Pattern of the last parts of a path, such as train/images; `${folder}` is what lies above."""
    optional: bool = False


class KnownLayout(Settings):
    """One dataset, or the folder that one program writes."""

    title: str = Field(min_length=1)
    about: str = Field(min_length=1)
    """One sentence: what it holds."""
    images: int | None = Field(None, ge=1)
    """Images of the public set; null: unknown or any number."""
    patients: int | None = Field(None, ge=1)
    lesions: int | None = Field(None, ge=1)
    licence: str = "unknown"
    """The licence of the images; `unknown` where nobody states one."""
    citation: str = ""
    download: str = Field(min_length=1)
    """What to download, and where it is found."""
    groups: str = Field(min_length=1)
    """What ties images together, or that nothing does."""
    confirmed: str = Field(min_length=1)
    """What confirms a diagnosis."""
    faults: tuple[str, ...] = ()
    """Known faults: overlaps with other sets, duplicates, splits that lesions cross."""
    unsure: tuple[str, ...] = ()
    """What this file says from memory and nobody has checked in the files themselves."""
    marks: Mapping[str, LayoutMark] = {}
    """Name -> what is looked for; the recipe has its path as ${name}."""
    sidecar: tuple[str, ...] = ()
    """Keys of the JSON beside an image."""
    pages: str = ""
    """The key of the list in JSON pages beside images; `sidecar` are keys of its entries."""
    recipe: Mapping[str, Any] = {}
    """The recipe, without a name; images are looked for where it names no `files`. None where the
    columns differ from one such dataset to another, and are looked at."""

    @property
    def sure(self) -> bool:
        """Tell whether more than names such as */1.jpg speaks for it: they may be in any folder."""
        whole = [mark for mark in self.marks.values() if not mark.path.startswith("*")]
        return bool(whole or self.sidecar)

    @property
    def counts(self) -> str:
        """The numbers of the public set, in words."""
        kinds = {"images": self.images, "patients": self.patients, "lesions": self.lesions}
        return ", ".join(f"{number:,} {what}" for what, number in kinds.items() if number)


@dataclass(frozen=True)
class LayoutMatch:
    """A layout that a folder has, and the paths of its marks."""

    name: str
    layout: KnownLayout
    places: Mapping[str, str]
    heads: Mapping[str, TableHead]
    """The tables among the marks."""

    @property
    def weight(self) -> int:
        """How much of the folder the layout explains: columns of tables, marks and keys."""
        columns = sum(len(self.layout.marks[name].columns) for name in self.heads)
        return columns + len(self.places) + len(self.layout.sidecar)

    @property
    def sure(self) -> bool:
        """Tell whether more than names of files that may be in any folder speaks for it."""
        return self.layout.sure

    def recipe(self) -> dict[str, Any]:
        """Return the recipe with the paths of this folder; optional parts that lack are left out.

        Columns that a table has not are left out, too, where a source can do without.
        """
        filled = {key: _filled(value, self.places) for key, value in self.layout.recipe.items()}
        for key in _OPTIONAL:
            if filled.get(key) is None:
                filled.pop(key, None)
        sources = [self._with_columns_there(source) for source in filled["sources"]]
        return {**filled, "sources": sources}

    def _with_columns_there(self, source: dict[str, Any]) -> dict[str, Any]:
        heads = {str(head.path): head for head in self.heads.values()}
        joined = [one.get("path") for one in source.get("join", ())]
        tables = [heads[path] for path in (source.get("path"), *joined) if path in heads]
        if not tables or source.get("header"):
            return source
        there = frozenset().union(*(table.folded for table in tables))

        def kept(names: Sequence[str]) -> list[str]:
            return [one for one in names if folded_name(one) in there]

        combine = {
            name: kept(of) if isinstance(of, list) else of
            for name, of in source.get("combine", {}).items()
        }
        there |= {folded_name(name) for name, of in combine.items() if of}
        also = source.get("columns", {}).get("also", {})
        columns = {}
        for field, column in source.get("columns", {}).items():
            given = [column] if isinstance(column, str) else column
            if field == "also":
                columns[field] = column
                continue
            if isinstance(column, dict):
                few = {one: [of] if isinstance(of, str) else of for one, of in column.items()}
                columns[field] = {one: of for one, of in few.items() if len(kept(of)) == len(of)}
                continue
            if field not in ("file", "label"):
                given = [one for one in given if kept((one, *also.get(one, ())))]
                given = given or [""]
            columns[field] = given[0] if isinstance(column, str) else given
        source = {**source, "columns": columns}
        for piece in ("levels", "one_hot"):
            if isinstance(source.get(piece), list):
                source[piece] = kept(source[piece])
        if combine:
            source["combine"] = {name: of for name, of in combine.items() if of}
        return source


def _filled(value: Any, places: Mapping[str, str]) -> Any:
    """Return a value with paths for its variables; None where one of them is not there."""
    if isinstance(value, str):
        named = _VARIABLE.findall(value)
        if any(name not in places for name in named):
            return None
        return _VARIABLE.sub(lambda match: places[match[1]], value)
    if isinstance(value, Mapping):
        filled = {key: _filled(one, places) for key, one in value.items()}
        # Of a map of labels null is a value.
        missing = [key for key, one in value.items() if one is not None and filled[key] is None]
        return None if missing else filled
    if isinstance(value, list | tuple):
        kept = [one for one in (_filled(each, places) for each in value) if one is not None]
        return kept if kept or not value else None
    return value


def known_layouts() -> dict[str, KnownLayout]:
    """Return all known layouts by name. Raises UserError for a file that is none."""
    return {
        path.stem: KnownLayout.parse(read_yaml(path), path.name, expand=False, yaml=True)
        for path in sorted(LAYOUTS.glob("*.yaml"))
    }


def recognised(contents: FolderContents) -> list[LayoutMatch]:
    """Return the layouts that a folder has, those that explain most first.

    A layout of which another one explains all marks and more is left out.
    """
    layouts = known_layouts()
    found: list[LayoutMatch] = []
    for sure in (True, False):  # what may be in any folder is looked for in 400,000 names last
        if not found:
            found = [
                match
                for name, layout in layouts.items()
                if layout.sure == sure and (match := _match(name, layout, contents))
            ]
    found.sort(key=lambda match: -match.weight)
    kept: list[LayoutMatch] = []
    for match in found:
        if not any(_shared(match, other) for other in kept):
            kept.append(match)
    return kept


def _shared(match: LayoutMatch, other: LayoutMatch) -> bool:
    """Tell whether two layouts take the same files."""
    if not match.heads or not other.heads:
        return True
    paths = {head.path for head in match.heads.values()}
    return bool(paths & {head.path for head in other.heads.values()})


def _match(name: str, layout: KnownLayout, contents: FolderContents) -> LayoutMatch | None:
    places = {"folder": str(contents.root)}
    heads: dict[str, TableHead] = {}
    for key, mark in layout.marks.items():
        if mark.path:
            place = _place(mark.path, contents) if _is_usual(mark.path, contents) else None
            if place is not None:
                above, path = place
                places[key] = str(contents.root / path)
                places["folder"] = str(contents.root / above)
            elif not mark.optional:
                return None
            continue
        tables = [head for head in contents.tables if _is(head, mark, contents.root)]
        if table := _one_of(tables, layout):
            places[key], heads[key] = str(table.path), table
        elif not mark.optional:
            return None
    if layout.sidecar and not _has_keys(layout, contents, places):
        return None
    if not layout.marks and not layout.sidecar:
        return None
    return LayoutMatch(name, layout, places, heads)


def _is(head: TableHead, mark: LayoutMark, root: Path) -> bool:
    name = head.path.relative_to(root).name.casefold()
    return head.has(mark.columns) and fnmatch.fnmatchcase(name, (mark.name or "*").casefold())


def _one_of(tables: Sequence[TableHead], layout: KnownLayout) -> TableHead | None:
    """Return the table of a mark. Raises UserError where several different ones could be meant."""
    if len(tables) > 1 and len({_said(table) for table in tables}) > 1:
        names = " and ".join(str(table.path) for table in tables[:3])
        raise UserError(
            f"the tables {names} both look like the table of {layout.title} but differ; remove "
            "the wrong table from the folder, or give the folder of the correct one."
        )
    return tables[0] if tables else None


def _said(table: TableHead) -> frozenset[tuple[str, ...]]:
    """Return what the first lines say, whatever the format and order of columns."""
    names = sorted(table.columns)
    return frozenset(
        tuple(folded_name(table_cell) for table_cell in row)
        for row in zip(*(table.cells(name) for name in names), strict=True)
    )


def _place(pattern: str, contents: FolderContents) -> tuple[str, str] | None:
    """Return the folder above what a pattern matches, and the path, nearest to the top."""
    depth = pattern.count("/") + 1
    for path in sorted(_paths(contents, pattern), key=lambda one: (one.count("/"), one)):
        parts = path.split("/")
        last = "/".join(parts[-depth:])
        if len(parts) >= depth and fnmatch.fnmatchcase(last.casefold(), pattern.casefold()):
            return "/".join(parts[:-depth]), path
    return None


def _is_usual(pattern: str, contents: FolderContents) -> bool:
    """Tell whether most folders here have a first number, such as */1.*, which any may have."""
    if not pattern.startswith("*/") or "*" in PurePosixPath(pattern).stem:
        return True
    fits = re.compile(fnmatch.translate(pattern[2:]), re.IGNORECASE).match
    having = sum(any(map(fits, names)) for names in contents.images.values())
    return 2 * having > len(contents.images)


def _paths(contents: FolderContents, pattern: str) -> Iterator[str]:
    """Yield the paths whose last part fits a pattern."""
    name = pattern.rpartition("/")[2]
    fits = re.compile(fnmatch.translate(name), re.IGNORECASE).match
    for path in (*contents.folders, *contents.others, *contents.archives):
        if fits(path.rpartition("/")[2]):
            yield path
    ending = PurePosixPath(name).suffix
    if "*" not in (ending or name) and ending not in IMAGE_ENDINGS:
        return  # it names no image
    for folder, names in contents.images.items():
        yield from (f"{folder}/{one}" if folder else one for one in filter(fits, names))


def _has_keys(layout: KnownLayout, contents: FolderContents, places: dict[str, str]) -> bool:
    """Tell whether the JSON beside images has a layout's keys, and note their folder."""
    if not layout.pages:
        path, said = contents.sidecar()
        return bool(path) and all(_reaches(said, key) for key in layout.sidecar)
    for _, page in contents.pages():
        listed = page
        for part in layout.pages.split("."):
            listed = listed.get(part) if isinstance(listed, dict) else None
        entries = list(listed.values()) if isinstance(listed, dict) else listed
        for entry in entries[:3] if isinstance(entries, list) else ():
            if all(_reaches(entry, key) for key in layout.sidecar):
                return True
    return False


def _reaches(record: Any, key: str) -> bool:
    for part in key.split("."):
        if isinstance(record, list) and part.isdecimal() and int(part) < len(record):
            record = record[int(part)]
        elif isinstance(record, dict) and part in record:
            record = record[part]
        else:
            return False
    return True

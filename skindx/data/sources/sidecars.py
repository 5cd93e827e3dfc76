"""Images that a scraper stored with a JSON file beside each, or with JSON pages that list them.

gallery-dl writes NAME.jpg.json, img2dataset NAME.json; dumps of Openverse and Wikimedia Commons are
pages with the records of a folder's images. Shards of WebDataset are tars of the same files, with
NAME.cls and NAME.txt too (https://github.com/webdataset/webdataset).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.ledger import file_name
from skindx.data.sources.columns import plain_text
from skindx.data.sources.files import FileColumns, TableOfFiles
from skindx.data.sources.folder import look_at, visible
from skindx.data.tables.archives import DAMAGED, ENDINGS, may_be_archive
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import AGAIN, LEFT_OUT, TableLog, WantedColumns
from skindx.data.tables.shape import TableShape, shaped_lines

FOLDER = "(folder)"
"""Column that stands for the name of the folder in which an image lies."""
_MOST_BYTES = 64 << 20
"""Most bytes of one JSON file."""
_BESIDE = ("json", "txt", "cls")
"""Endings of what may lie beside an image."""
_DEEPEST = 12


class SidecarColumns(FileColumns):
    """Keys of the JSON, those of inner objects with dots: extmetadata.Artist.value."""

    file: str = "file"
    """Key of an image's file, with or without its ending, or its URL, in pages of records."""
    label: str = Field(FOLDER, min_length=1)
    licence: str = ""
    attribution: str = ""
    group: str | tuple[str, ...] = ""
    skin_type: str = ""


class SidecarsSource(TableShape, TableOfFiles):
    """A folder, with all folders, tars and zips in it, in which JSON says what each image is.

    What stands in NAME.cls and NAME.txt beside an image are its keys cls and txt.

    Images without a JSON file become issues, and so do records without an image.
    """

    kind: Literal["sidecars"]
    path: Path
    """The folder."""
    records: str = Field("", exclude_if=lambda records: not records)
    """Key of the list in pages of records, such as results or query.pages; "": a JSON file lies
    beside each image."""
    columns: SidecarColumns = SidecarColumns()

    @property
    def name(self) -> str:
        return f"sidecars:{self.path.resolve().name}"

    @property
    def folder(self) -> Path:
        return self.path

    @property
    def table(self) -> Path:
        return self.path

    @property
    def root(self) -> Path:
        return self.path

    @property
    def known_columns(self) -> FileColumns:
        return self.columns

    def lines(self) -> list[dict[str, Any]]:
        """Read the JSON files. Raises UserError."""
        if not self.path.is_dir():
            raise UserError(
                f"{self.path} is not a folder; set `path` to the folder of the images and JSON "
                "files."
            )
        log = TableLog()
        lines = shaped_lines(
            self.path,
            self.columns,
            self,
            log,
            label=self.columns.label,
            read=lambda wanted: self._records(wanted, log),
        )
        self._notes = log.all_notes(self.path)
        if not any(LEFT_OUT not in line for line in lines):
            what = "JSON files beside its images"
            if self.records:
                what = f"JSON files with a list of images under the key {self.records!r}"
            raise UserError(
                f"{self.path} has no {what}; change `path` or `records` in the recipe. If each "
                "folder is a class, set `kind: folder`."
            )
        return lines

    def _records(self, wanted: WantedColumns, log: TableLog) -> Iterator[dict[str, Any]]:
        """Yield a line for each image. Raises UserError for a key that no record has."""
        file, keys = self.columns.file, [one for one in wanted.wanted if one != FOLDER]
        keys = [key for key in keys if key != file or self.records]
        seen: set[str] = set()
        example: Mapping[str, Any] = {}
        lone = 0
        for at, record in self._found():
            folder = at.parent if at.parent != self.path else self.path.resolve()
            line: dict[str, Any] = {FOLDER: folder.name}
            if record is None:
                lone += 1
                status = ("no-line", "no JSON file says what it is")
                yield line | {file: at.relative_to(self.path).as_posix(), LEFT_OUT: status}
                continue
            example = example or record
            for key in keys:
                value = _value_at(record, key)
                seen |= {key} if value is not None else set()
                line[key] = _as_cell(value)
            name = cell(line.get(file)) if self.records else at.name
            path = self._file_of(at.parent, name) if self.records else at
            yield line | {file: path.relative_to(self.path).as_posix()}
            log.lines += 1
        for key in keys:
            if example and key not in seen:
                raise UserError(
                    f"no JSON file in {self.path} has the key {key!r}; change `columns` in the "
                    f"recipe to existing keys, such as {', '.join(list(example)[:12])}."
                )
        if lone:
            log.notes.append(f"{counted(lone, 'image')} without a JSON file left out.")

    def _file_of(self, folder: Path, name: str) -> Path:
        """Return the file of a record: by its name, with an ending, or as a URL ends."""
        name = file_name(name) if "://" in name else name
        paths = (folder / f"{name}{ending}" for ending in ENDINGS if name)
        return next((path for path in paths if os.path.lexists(path)), folder / (name or "no name"))

    def _found(self) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """Yield images with their records, None for one without; no link to a folder is entered."""
        waiting = [self.path]
        while waiting:
            entries = visible(waiting.pop(0))
            waiting += [one for one in entries if one.is_dir() and not one.is_symlink()]
            files = {one.name: one for one in entries if not one.is_dir()}
            if self.records:
                yield from self._of_pages(files)
                continue
            for name, path in files.items():
                if may_be_archive(path) and path.resolve().is_relative_to(self.path.resolve()):
                    yield from self._of_archive(path)
                    continue
                beside = {end: files.get(f"{path.stem}.{end}") for end in _BESIDE}
                beside["json"] = files.get(f"{name}.json") or beside["json"]
                given = {end: one for end, one in beside.items() if one and one != path}
                if path.suffix.casefold() == ".json":
                    continue
                seen = look_at(path, "", self.path.resolve()).status == "stored"
                if given and (seen or path.suffix.lower() in ENDINGS[1:]):
                    yield path, self._record({end: self._opener(one) for end, one in given.items()})
                elif seen:
                    yield path, None

    def _of_archive(self, archive: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """Yield the images of a shard; of a name the key is what stands before its first dot."""
        members = self._archives().members(archive.relative_to(self.path).as_posix())
        beside: dict[str, dict[str, _Opener]] = {}
        for name, member in members.items():
            key, end = _key_of(name)
            if end in _BESIDE:
                beside.setdefault(key, {})[end] = (archive / name, member)
        for name in members:
            if Path(name).suffix.lower() in ENDINGS[1:]:
                given = beside.get(_key_of(name)[0])
                yield archive / name, self._record(given or {})

    def _opener(self, path: Path) -> "_Opener":
        def opened() -> IO[bytes]:
            inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))
            if not inside or not path.is_file() or path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is a link, or no plain file, or too large")
            return path.open("rb")

        return path, opened

    def _record(self, given: Mapping[str, "_Opener"]) -> dict[str, Any] | None:
        """Return what stands beside an image; None where nothing does that the recipe asks for."""
        if "json" not in given and not set(given) & set(self.columns.wanted):
            return None
        record = _read_json(given["json"]) if "json" in given else {}
        return {end: _read(one).strip() for end, one in given.items() if end != "json"} | record

    def _of_pages(self, files: Mapping[str, Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
        for page in files.values():
            if page.suffix.casefold() != ".json":
                continue
            listed = _value_at(_read_json(self._opener(page)), self.records)
            listed = list(listed.values()) if isinstance(listed, dict) else listed
            for record in listed if isinstance(listed, list) else ():
                if isinstance(record, dict):
                    yield page, record


_Opener = tuple[Path, Callable[[], IO[bytes]]]
"""A file's path, and what opens it."""


def _key_of(name: str) -> tuple[str, str]:
    """Return the key of a member of a shard, with its folders, and what stands behind the dot."""
    above, slash, last = name.rpartition("/")
    key, _, end = last.partition(".")
    return f"{above}{slash}{key}", end.casefold()


def _read(one: _Opener) -> str:
    """Return the text of a small file. Raises UserError."""
    path, opened = one
    try:
        with opened() as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError("it is too large")
        return data.decode("utf-8-sig")
    except (*DAMAGED, MemoryError) as error:
        raise UserError(
            f"{path} cannot be read ({' '.join(str(error).split())[:200]}); {AGAIN}, or delete it."
        ) from None


def _read_json(one: _Opener) -> dict[str, Any]:
    """Return the object of a JSON file. Raises UserError for what is none."""
    try:
        content = json.loads(_read(one))
    except UserError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(
            f"{one[0]} cannot be read as JSON ({' '.join(str(error).split())[:200]}); {AGAIN}, or "
            "delete it."
        ) from None
    return content if isinstance(content, dict) else {"": content}


def _value_at(record: Any, key: str) -> Any:
    """Return what stands below a key with dots; None for nothing."""
    if isinstance(record, dict) and key in record:
        return record[key]
    value = record
    for part in key.split(".", _DEEPEST):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _as_cell(value: Any) -> Any:
    """Return a value as a cell has it: lists of words as one text, HTML as its text."""
    if isinstance(value, list):
        value = ", ".join(cell(one) for one in value if not isinstance(one, dict | list))
    if isinstance(value, str) and ("<" in value or "&" in value):
        value = plain_text(value)
    return value

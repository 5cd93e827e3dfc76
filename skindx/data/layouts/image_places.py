"""Where the images of a table's cells are: the patterns that a recipe names in `files`."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.placeholders import is_placeholder

_NO_PHOTOS = re.compile(
    r"mask|segment|superpixel|attribute|annotation|heat.?map|thumb|augment|_lesion$|_roi$|[_-]gt$",
    re.IGNORECASE,
)
"""Folders, and endings of names, of what belongs to images and is none."""
_MOST_PLACES, _FEW_FOLDERS = 40, 30
_SHORTEST = 3
"""Characters of a cell that are looked for within the names of folders."""
_HEAD = 3000
"""Cells that are looked up; more of a table are of the same folders."""


@dataclass(frozen=True)
class ImagePlaces:
    """The patterns under which the files of cells are, relative to the folder, and how many are."""

    patterns: tuple[str, ...]
    there: int
    cells: int

    @property
    def share(self) -> float:
        """The share of cells that name a file."""
        return self.there / self.cells if self.cells else 0.0

    def settings(self, root: Path, table: Path) -> dict[str, Any]:
        """Return `files` and `files_in` of a recipe."""
        top = table.parent.relative_to(root).as_posix()
        patterns = self.patterns
        if top == ".":
            settings: dict[str, Any] = {}
        elif all(pattern.startswith(f"{top}/") for pattern in patterns):
            settings, patterns = {}, tuple(one[len(top) + 1 :] for one in patterns)
        else:
            settings = {"files_in": str(root)}
        if patterns != ("{}",):
            settings["files"] = patterns[0] if len(patterns) == 1 else list(patterns)
        return settings


class ImageIndex:
    """The images of a folder by name, and by name without the ending."""

    def __init__(self, contents: FolderContents) -> None:
        self._folders: dict[str, set[str]] = {
            folder: set(names)
            for folder, names in (*contents.images.items(), *contents.packed.items())
            if not holds_no_photos(folder)
        }
        self._by_name: dict[str, list[str]] | None = None
        """Where there are many folders: name, and name without its ending -> folders."""

    @cached_property
    def _endings(self) -> frozenset[str]:
        names = (name for names in self._folders.values() for name in names)
        return frozenset(dot + ending for _, dot, ending in (one.rpartition(".") for one in names))

    @cached_property
    def _widths(self) -> frozenset[int]:
        """Lengths of names that are numbers."""
        names = (name for names in self._folders.values() for name in names)
        stems = (name.rpartition(".")[0] for name in names)
        return frozenset(len(stem) for stem in stems if stem.isdecimal())

    def _places_of(self, stem: str, endings: Iterable[str]) -> list[tuple[str, str]]:
        """Return (folder, ending) of each file of a name."""
        folders: Iterable[str] = self._folders
        if len(self._folders) > _FEW_FOLDERS:
            if self._by_name is None:
                self._by_name = defaultdict(list)
                for folder, names in self._folders.items():
                    for name in names:
                        self._by_name[name].append(folder)
            known = self._by_name
            return [(at, end) for end in endings for at in known.get(stem + end, ())]
        return [(at, end) for at in folders for end in endings if stem + end in self._folders[at]]

    def places(self, cells: Iterable[str]) -> ImagePlaces:
        """Look up cells that may name images."""
        known = [text for text in dict.fromkeys(cells) if text and not is_placeholder(text)]
        looked_up = known[:: max(1, len(known) // _HEAD)]
        found = {text: self._patterns_of(text) for text in looked_up}
        counts = Counter(one for patterns in found.values() for one in patterns)
        left = {text for text, patterns in found.items() if patterns}
        chosen: list[str] = []
        there = len(left)
        while left and len(chosen) < _MOST_PLACES:
            best = max(counts, key=lambda one: (sum(one in found[t] for t in left), counts[one]))
            chosen.append(best)
            left = {text for text in left if best not in found[text]}
        return ImagePlaces(tuple(sorted(chosen)), there - len(left), len(looked_up))

    def _patterns_of(self, text: str) -> set[str]:
        plain = text.replace("\\", "/").removeprefix("./")
        above, slash, name = plain.rpartition("/")
        if slash:
            return self._of_path(above, name)
        found = {_with_hole(folder, "{}", plain) for folder, _ in self._places_of(plain, ("",))}
        if not found:
            stems = self._places_of(plain, self._endings)
            found = {_with_hole(folder, f"{{}}{ending}", plain) for folder, ending in stems}
        if not found and plain.isdecimal():
            for width in self._widths:
                stems = self._places_of(plain.zfill(width), self._endings)
                found |= {_joined(folder, f"{{:0{width}}}{ending}") for folder, ending in stems}
        return {one for one in found if "{:" not in one or re.search(r"\{:0\d\}", one)}

    def _of_path(self, above: str, name: str) -> set[str]:
        found = set()
        for folder, names in self._folders.items():
            if folder == above or folder.endswith(f"/{above}"):
                prefix = folder[: len(folder) - len(above)]
                if name in names:
                    found.add(f"{prefix}{{}}")
                    continue
                for ending in self._endings:
                    if name + ending in names:
                        found.add(f"{prefix}{{}}{ending}")
        return found


def holds_no_photos(folder: str) -> bool:
    """Tell whether a folder's name says that it holds masks, copies or the like."""
    return any(map(_NO_PHOTOS.search, folder.split("/")))


def _with_hole(folder: str, name: str, text: str) -> str:
    """Return a pattern in which the cell also stands for its part of the folders' names."""
    stem = text.rpartition(".")[0] or text
    if len(stem) >= _SHORTEST and stem in folder and stem == text:
        folder = folder.replace(text, "{}")
    return _joined(folder, name)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name

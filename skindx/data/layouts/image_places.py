"""Where the images of a table's cells are: the patterns that a recipe names in `files`."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.placeholders import is_placeholder

_NO_PHOTOS = re.compile(
    r"mask|segment|superpixel|attribute|annotation|heat.?map|thumb|augment|_lesion$|_roi$|[_-]gt$",
    re.IGNORECASE,
)
"""Folders, and endings of names, of what belongs to images and is none."""
_MOST_PLACES = 40
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
        self._folders: dict[str, set[str]] = {}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        self._by_stem: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._widths: Counter[int] = Counter()
        """Lengths of names that are numbers."""
        for folder, names in (*contents.images.items(), *contents.packed.items()):
            if holds_no_photos(folder):
                continue
            self._folders[folder] = set(names)
            for name in names:
                stem, dot, ending = name.rpartition(".")
                self._by_name[name].append(folder)
                self._by_stem[stem].append((folder, dot + ending))
                if stem.isdecimal():
                    self._widths[len(stem)] += 1

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
        found = {_with_hole(folder, "{}", plain) for folder in self._by_name.get(plain, ())}
        if not found:
            stems = self._by_stem.get(plain, ())
            found = {_with_hole(folder, f"{{}}{ending}", plain) for folder, ending in stems}
        if not found and plain.isdecimal():
            for width in self._widths:
                stems = self._by_stem.get(plain.zfill(width), ())
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
                for there, ending in self._by_stem.get(name, ()):
                    if there == folder:
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

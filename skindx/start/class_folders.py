"""Folders of classes below a folder, and what speaks against their being classes."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.layouts.image_places import holds_no_photos
from skindx.data.tables.cells import split_of
from skindx.start.proposal import Proposal, Wishes
from skindx.taxonomy.label_matches import match

FOLDERS = "folders"
"""Name of a dataset in which each folder is a class, whatever the folder's name."""
_PARTS = re.compile(
    r"(?:.*[\W_])?(?:part|train|training|test|testing|val|valid|validation|images?|imgs?|pictures?"
    r"|photos?|masks?|splits?|folds?|batch|data|dataset|set|sets|new|old|original|augmented|raw"
    r"|folder|dirs?|directory|labels?)(?:[\W_].*|[\W_]*\d*)?",
    re.IGNORECASE | re.DOTALL,
)
_NUMBERED = re.compile(r"[A-Za-z]{0,4}[\W_]?\d+")


def propose_folders(contents: FolderContents, wishes: Wishes) -> Proposal:
    """Return a recipe of class folders. Raises UserError where they may be something else."""
    root = contents.root
    leaves = {
        folder: names
        for folder, names in contents.images.items()
        if folder and not holds_no_photos(folder)
    }
    top = _top(list(leaves))
    plain = {"sources": [{"kind": "folder", "path": str(root / top) if top else str(root)}]}
    if not leaves or wishes.dataset == FOLDERS:
        return Proposal(plain)
    _check_json(contents)
    below = {leaf: leaf[len(top) + 1 if top else 0 :].split("/") for leaf in leaves}
    firsts = list(dict.fromkeys(parts[0] for parts in below.values() if parts[0]))
    splits = {name: _split(name) for name in firsts}
    lines = [f"The class folders are those in {root / top}."] if top else []
    sources = plain["sources"]
    level = 0
    if firsts and all(splits.values()) and any(len(parts) > 1 for parts in below.values()):
        level = 1
        if any(split_of(name) is None for name in firsts):
            sources = [
                {"kind": "folder", "path": str(root / top / name), "split": split}
                for name, split in splits.items()
            ]
            kept = ", ".join(f"{name} as {split}" for name, split in splits.items())
            lines.append(f"Folders of splits are kept: {kept}.")
    named = [parts[level] for parts in below.values() if len(parts) > level and parts[level]]
    counts: Counter[str] = Counter()
    for leaf, parts in below.items():
        if len(parts) > level:
            counts[parts[level]] += len(leaves[leaf])
    _check_names(root, list(dict.fromkeys(named)), counts)
    if deeper := [leaf for leaf, parts in below.items() if len(parts) > level + 1]:
        lines.append(
            f"Folders within a class folder, such as {deeper[0]}, are read as a part of the class."
        )
    return Proposal({"sources": sources}, tuple(lines))


def _top(folders: Sequence[str]) -> str:
    """Return the folder below which folders of images differ."""
    if len(folders) < 2:
        return ""
    parts = [folder.split("/") for folder in folders]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return "/".join(shared)


def _split(name: str) -> str:
    """Return the split that a folder's name says, also as train_set and Test Images."""
    words = re.split(r"[\W_\d]+", name)
    found = {split for word in words if (split := split_of(word))}
    others = [word for word in words if word and not split_of(word) and not _PARTS.fullmatch(word)]
    return found.pop() if len(found) == 1 and not others else ""


def _check_names(root: Path, names: Sequence[str], counts: Counter[str]) -> None:
    parts = [name for name in names if _PARTS.fullmatch(name) and not match(name)]
    numbers = [name for name in names if _NUMBERED.fullmatch(name) and not match(name)]
    what = ""
    if 2 * len(parts) >= len(names) > 0:
        what = "have names of dataset parts, not of classes"
    elif 2 * len(numbers) >= len(names) > 0:
        what = "have numbered names, like those of people, lesions or parts of a download"
    elif len(names) > 20 and counts.total() < 3 * len(names):
        what = f"have {counts.total() / len(names):.1f} images each, as people or lesions do"
    if what:
        raise UserError(
            f"the folders in {root} ({', '.join(list(names)[:3])}) {what}, so they do not give "
            "the class of an image; give a folder with one folder of images for each class, or a "
            "recipe with `kind: files` and a table that has the class of each image "
            f"(docs/howto/build.md). If each folder is a class, add --dataset {FOLDERS}."
        )


def _check_json(contents: FolderContents) -> None:
    """Raise UserError where JSON files say more of the images than their folders."""
    image, said = contents.sidecar()
    page = next((name for name, value in contents.pages() if isinstance(value, dict | list)), "")
    if image or page:
        if (
            page
            and isinstance(found := dict(contents.pages())[page], dict)
            and "annotations" in found
        ):
            raise UserError(
                f"{page} is a COCO file with classes of boxes; write a recipe by hand, with a "
                "source of `kind: folder` and `layout: coco` (see docs/howto/build.md)."
            )
        where = f"a JSON file beside {image}" if image else page
        keys = ", ".join(list(said)[:8]) if said else "lists of images"
        raise UserError(
            f"{where} ({keys}) describes the images more fully than the names of their folders; to "
            "read it, write a recipe with `kind: sidecars` (docs/howto/build.md), or use only the "
            f"folders with --dataset {FOLDERS}."
        )


def aside(contents: FolderContents) -> list[str]:
    """Say which tables name no image of the folder, and are not read."""
    names = list(dict.fromkeys(head.path.name for head in contents.tables))
    if not names:
        return []
    shown = ", ".join(names[:3])
    return [f"{counted(len(names), 'table')} without a name of an image here, not read: {shown}."]

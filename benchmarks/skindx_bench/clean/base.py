"""The images that are planted into: painted ones, or those of a folder, no two of one thing."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.copies.hash_links import connected, near_links
from skindx.data.layout import MANIFEST
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import read_manifest
from skindx.data.splits.groups import GroupKeys, GroupSettings, GroupTable
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.imaging.hashes import HashKind, hash_images
from skindx.imaging.image_formats import HEAD, DamagedImage, image_suffix

HASHES: tuple[HashKind, ...] = ("perceptual", "difference")
THIN = 6
"""Images within so many bits may show the same; one of them is taken."""


@dataclass(frozen=True, slots=True)
class Base:
    """One image that stands for itself; `label` is its class, or the name of its folder."""

    name: str
    label: str
    data: bytes
    suffix: str


def painted_base(count: int, seed: int) -> list[Base]:
    """Paint so many images, the classes in turn."""
    return [
        Base(f"painted {index}", label, encode_jpeg(paint(label, index, seed).pixels), ".jpg")
        for index, label in ((index, CLASSES[index % len(CLASSES)]) for index in range(count))
    ]


def folder_base(
    folder: Path, pattern: str, tables: Sequence[GroupTable], most: int, seed: int
) -> tuple[list[Base], int]:
    """Return images of a folder, and how many were left out because they may show the same.

    Of a built dataset its manifest names the groups; elsewhere the file name does, by `pattern`
    (its first group) and `tables`. Of each group, and of images within THIN bits, one is taken;
    of the rest `most` at random (0: all). Raises UserError for a folder without images.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name one with images, or leave dataset out.")
    found: list[Base] = []
    keys: list[list[str]] = []
    codes: list[NDArray[np.uint64]] = []
    by_table = GroupKeys(GroupSettings(tables=tuple(tables)))
    for path, label, group in _listed(folder):
        data = path.read_bytes()
        suffix = image_suffix(data[:HEAD])
        if suffix not in (".jpg", ".png"):
            continue
        try:
            codes.append(hash_images([data], HASHES))
        except DamagedImage:
            continue
        found.append(Base(path.relative_to(folder).as_posix(), label, data, suffix))
        match = re.search(pattern, path.name) if pattern else None
        row = LedgerRow(path.name, label, "stored")
        named = [f"group {group}"] if group else []
        named += [f"name {match.group(1)}"] if match else []
        keys.append([*named, *by_table.of(row)])
    if not found:
        raise UserError(f"{folder} holds no JPEG or PNG image that can be read.")
    taken = _one_of_each(found, keys, np.concatenate(codes))
    order = np.random.default_rng(seed).permutation(len(taken))[: most or None]
    return [taken[at] for at in np.sort(order)], len(found) - len(taken)


def _listed(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, label, group) of what may be an image, in a fixed order."""
    if (folder / MANIFEST).is_file():
        for record in sorted(read_manifest(folder), key=lambda record: record.path):
            yield folder / record.path, record.label, record.group
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            yield path, path.parent.name, ""


def _one_of_each(
    found: list[Base], keys: list[list[str]], codes_NKO: NDArray[np.uint64]
) -> list[Base]:
    """Return the first image of each component of near hashes and shared keys."""
    near_L2 = near_links(codes_NKO, THIN)[:, :2]
    owner: dict[str, int] = {}
    tied = [(owner.setdefault(key, i), i) for i, named in enumerate(keys) for key in named]
    tied_L2 = np.array(tied, np.int64).reshape(-1, 2)
    component = connected(len(found), np.concatenate([near_L2, tied_L2]))
    first: dict[int, Base] = {}
    for image, number in zip(found, component, strict=True):
        first.setdefault(number, image)
    return list(first.values())

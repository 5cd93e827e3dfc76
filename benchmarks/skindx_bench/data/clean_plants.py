"""Plant copies, shared overlays and images without skin among base images, and keep the truth."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.data.copies.hash_links import connected, near_links
from skindx.data.layout import MANIFEST
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import read_manifest
from skindx.data.splits.groups import GroupKeys, GroupSettings, GroupTable
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.imaging.decode import decode
from skindx.imaging.hashes import HashKind, hash_images
from skindx.imaging.image_formats import HEAD, DamagedImage, image_suffix
from skindx_bench.data.copy_variants import OVERLAYS, make_copy
from skindx_bench.data.overlays import OTHER_OVERLAYS, drawing
from skindx_bench.honesty.no_skin_images import KINDS as NO_SKIN

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


IMAGES = "images"
TRUTH = "truth.csv"
SITE = 0
"""The site whose overlays different images share."""
LAID = {**OVERLAYS, **OTHER_OVERLAYS}
"""Overlay -> what lays it on an image; of the second ones nothing was learned."""
STRANGERS = {**NO_SKIN, "drawing": drawing}
"""Kind -> what paints an image without skin."""

Row = tuple[str, int, str, str, str, str]
"""(name, root, part, kind, label, origin) of an image; the origin is the base image's own name."""

# N = planted images, R = roots: different things that are shown


@dataclass(frozen=True)
class Planted:
    """A folder of images and what is known of them; row i of each column is image i.

    `names` are paths relative to the folder, sorted. Images of one root show the same. `parts` say
    why an image is there ("base", "copy", "overlay" or "off_topic"), `kinds` which kind it is of.
    """

    folder: Path
    names: tuple[str, ...]
    roots_N: NDArray[np.int64]
    parts: tuple[str, ...]
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    origins: tuple[str, ...]

    def where(self, part: str, kind: str | None = None) -> NDArray[np.int64]:
        """Return the positions of a part's images, of one kind or of all."""
        return np.array(
            [
                i
                for i, (own, its) in enumerate(zip(self.parts, self.kinds, strict=True))
                if own == part and kind in (None, its)
            ],
            np.int64,
        )

    @classmethod
    def of(cls, folder: Path, rows: Sequence[Row]) -> Self:
        """Sort rows into columns."""
        names, roots, *others = zip(*sorted(rows), strict=True)
        return cls(folder, names, np.array(roots, np.int64), *others)


def plant(
    folder: Path,
    base: Sequence[Base],
    kinds: Sequence[str],
    *,
    originals: int,
    overlaid: int,
    off_topic: int,
    seed: int,
    overlays: Sequence[str] = tuple(OVERLAYS),
) -> Planted:
    """Write the images into an empty folder, named by SHA-256, and return the truth.

    Each kind copies `originals` images. An image is copied once, unless there are too few; then
    all are copied equally often. Each overlay lies on `overlaid` images, which stand in the folder
    with it alone; each kind of off-topic image is painted `off_topic` times, each as large as a
    base image.
    Raises UserError when there are too few base images to leave some that are copied.
    """
    rng = np.random.default_rng([seed, len(base)])
    order = rng.permutation(len(base)).tolist()
    under = len(overlays) * overlaid
    if len(base) < 2 * under or len(base) - under < originals:
        raise UserError(
            f"{len(base)} different images are too few to copy {originals} of them and to lay an "
            f"overlay on {under}; give more images, or lower originals and overlaid."
        )
    rows: list[Row] = []
    own = [(image.label, image.name) for image in base]

    def put(data: bytes, suffix: str, why: tuple[int, str, str, str, str]) -> None:
        name = f"{IMAGES}/{hashlib.sha256(data).hexdigest()}{suffix}"
        (folder / name).write_bytes(data)
        rows.append((name, *why))

    (folder / IMAGES).mkdir(parents=True)
    for overlay, at in zip(np.repeat(list(overlays), overlaid).tolist(), order, strict=False):
        laid_HW3 = LAID[overlay](decode(base[at].data), SITE)
        put(encode_jpeg(laid_HW3, 90), ".jpg", (at, "overlay", overlay, *own[at]))
    rest = order[under:]
    for at in rest:
        put(base[at].data, base[at].suffix, (at, "base", "", *own[at]))
    for number in range(originals * len(kinds)):
        kind, at = kinds[number // originals], rest[number % len(rest)]
        data = make_copy(kind, decode(base[at].data), number % originals, seed)
        put(data, ".jpg", (at, "copy", kind, *own[at]))
    for number, (kind, draw) in enumerate(STRANGERS.items()):
        for count in range(off_topic):
            painted_HW3 = draw(np.random.default_rng([seed, number, count]))
            root = len(base) + number * off_topic + count
            # Their size alone must not tell them apart.
            height, width = decode(base[rest[root % len(rest)]].data).shape[:2]
            sized_HW3 = cv2.resize(painted_HW3, (width, height), interpolation=cv2.INTER_AREA)
            data = encode_jpeg(np.asarray(sized_HW3, np.uint8), 90)
            put(data, ".jpg", (root, "off_topic", kind, "", f"painted {kind} {count}"))
    write_csv(folder / TRUTH, ("name", "root", "part", "kind", "label", "origin"), sorted(rows))
    return Planted.of(folder, rows)

"""Plant copies, shared overlays and images without skin among base images, and keep the truth."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
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
from skindx.imaging.hashes import HashKind
from skindx.imaging.image_formats import HEAD, DamagedImage, image_suffix
from skindx_bench.data.copy_variants import INK, OVERLAYS, WORDS, make_copy, site_words, write_words
from skindx_bench.data.screen import hash_images
from skindx_bench.honesty.no_skin_images import KINDS as NO_SKIN

HEIGHT, WIDTH = 480, 640


def drawing(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw curves, boxes, flat shapes and labels with arrows on white or tinted paper."""
    paper = rng.integers(225, 256, 3).tolist()
    canvas_HW3 = np.full((HEIGHT, WIDTH, 3), paper, np.uint8)
    for _ in range(int(rng.integers(3, 7))):
        colour = rng.integers(0, 256, 3).tolist()
        x, y = (int(value) for value in rng.integers(40, 440, 2))
        wide, tall = (int(value) for value in rng.integers(30, 150, 2))
        filled = -1 if rng.random() < 0.5 else 3
        if rng.random() < 0.5:
            cv2.rectangle(canvas_HW3, (x, y), (x + wide, y + tall), colour, filled, cv2.LINE_AA)
        else:
            axes, slant = (wide // 2 + 5, tall // 2 + 5), float(rng.uniform(0, 180))
            cv2.ellipse(canvas_HW3, (x, y), axes, slant, 0, 360, colour, filled, cv2.LINE_AA)
    for _ in range(int(rng.integers(4, 9))):
        t = np.linspace(0, 1, 40)
        turns, phase = rng.uniform(1, 5), rng.uniform(0, 6)
        start, end = rng.uniform((0, 0), (WIDTH, HEIGHT), (2, 2))
        line = start + t[:, None] * (end - start)
        line[:, 1] += rng.uniform(5, 40) * np.sin(turns * np.pi * t + phase)
        points = line.round().astype(np.int32)
        cv2.polylines(
            canvas_HW3, [points], False, (20, 20, 20), int(rng.integers(1, 4)), cv2.LINE_AA
        )
    for label in range(int(rng.integers(2, 6))):
        at = (int(rng.integers(10, WIDTH - 160)), int(rng.integers(30, HEIGHT - 10)))
        tip = (int(rng.integers(WIDTH)), int(rng.integers(HEIGHT)))
        cv2.arrowedLine(canvas_HW3, at, tip, (40, 40, 40), 1, cv2.LINE_AA, tipLength=0.06)
        words = f"{chr(65 + label)} layer {int(rng.integers(100))}"
        cv2.putText(canvas_HW3, words, at, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1, cv2.LINE_AA)
    return canvas_HW3


Pixels = NDArray[np.uint8]


def tiled(pixels_HW3: Pixels, site: int) -> Pixels:
    """Repeat the site's name over the whole image, slanted, as agencies do."""
    height, width = pixels_HW3.shape[:2]
    ink_HW3 = np.zeros((2 * height, 2 * width, 3), np.uint8)
    for row in range(9):
        for column in range(4):
            place = ((column + 0.5 * (row % 2)) / 4, (row + 0.7) / 9)
            write_words(ink_HW3, site_words(site), place, 0.22, (255, 255, 255), bold=2)
    return _blended(pixels_HW3, _turned(ink_HW3, -30.0, (height, width)), 0.5, 255)


def stamp(pixels_HW3: Pixels, site: int) -> Pixels:
    """Lay one large dark word across the image."""
    height, width = pixels_HW3.shape[:2]
    ink_HW3 = np.zeros((2 * height, 2 * width, 3), np.uint8)
    word = ("PREVIEW", "SAMPLE", "COPY 2")[site % 3]
    write_words(ink_HW3, word, (0.26, 0.53), 0.46, (255, 255, 255), bold=3)
    return _blended(pixels_HW3, _turned(ink_HW3, 35.0, (height, width)), 0.35, 0)


def badge(pixels_HW3: Pixels, site: int) -> Pixels:
    """Put a round logo into one corner and a date into another one."""
    height, width = pixels_HW3.shape[:2]
    shown_HW3, radius = pixels_HW3.copy(), round(0.16 * min(height, width))
    rng = np.random.default_rng([site, 13])
    colour = tuple(int(value) for value in rng.integers(30, 200, 3))
    middle = (width - radius - round(0.03 * width), radius + round(0.03 * height))
    cv2.circle(shown_HW3, middle, radius, colour, -1, cv2.LINE_AA)
    cv2.circle(shown_HW3, middle, round(0.86 * radius), (255, 255, 255), 2, cv2.LINE_AA)
    for spoke in range(6):
        angle = spoke * np.pi / 3 + site
        end = (
            round(middle[0] + 0.6 * radius * np.cos(angle)),
            round(middle[1] + 0.6 * radius * np.sin(angle)),
        )
        cv2.line(shown_HW3, middle, end, (255, 255, 255), max(1, radius // 9), cv2.LINE_AA)
    date = f"2019-0{1 + site % 9}-17 10:4{site % 10}"
    write_words(shown_HW3, date, (0.03, 0.96), 0.42, (255, 190, 40))
    return shown_HW3


def mount(pixels_HW3: Pixels, site: int) -> Pixels:
    """Mount the image on patterned card with a title, as an album does."""
    height, width = pixels_HW3.shape[:2]
    wide = round(0.16 * min(height, width))
    rng = np.random.default_rng([site, 17])
    card_HW3 = np.full((height + 2 * wide, width + 2 * wide, 3), rng.integers(90, 200, 3), np.uint8)
    tall, across = card_HW3.shape[:2]
    step = max(6, wide // 2)
    for row in range(step // 2, tall, step):
        for column in range(step // 2, across, step):
            cv2.circle(card_HW3, (column, row), max(1, step // 5), (250, 245, 230), -1, cv2.LINE_AA)
    card_HW3[wide : wide + height, wide : wide + width] = pixels_HW3
    title = f"{WORDS[site % len(WORDS)]} {WORDS[(site + 4) % len(WORDS)]}"
    write_words(card_HW3, title, (0.3, (0.7 * wide) / tall), 0.4, INK, bold=2)
    return card_HW3


def reticle(pixels_HW3: Pixels, site: int) -> Pixels:
    """Draw the scale of a dermatoscope: a cross with marks, and two rings around the middle."""
    height, width = pixels_HW3.shape[:2]
    shown_HW3, unit = pixels_HW3.copy(), min(height, width) / 24
    middle, ink = (width // 2, height // 2), (20, 20, 20) if site % 2 == 0 else (235, 235, 235)
    thick = max(1, round(unit / 8))
    for side in range(4):
        across = np.array([1, 0] if side % 2 else [0, 1]) * (1 if side < 2 else -1)
        for mark in range(1, 11):
            at = np.array(middle) + np.rint(across * mark * unit).astype(int)
            tall = unit * (0.8 if mark % 5 == 0 else 0.4)
            half = np.rint(across[::-1] * tall).astype(int)
            cv2.line(shown_HW3, tuple(at - half), tuple(at + half), ink, thick, cv2.LINE_AA)
        end = np.array(middle) + np.rint(across * 11 * unit).astype(int)
        cv2.line(shown_HW3, middle, tuple(end), ink, thick, cv2.LINE_AA)
    for ring in (5, 10):
        cv2.circle(shown_HW3, middle, round(ring * unit), ink, thick, cv2.LINE_AA)
    return shown_HW3


def chart(pixels_HW3: Pixels, site: int) -> Pixels:
    """Lay a colour chart with a millimetre scale along the left side of the image."""
    height, width = pixels_HW3.shape[:2]
    shown_HW3, wide = pixels_HW3.copy(), round(0.18 * width)
    shown_HW3[:, :wide] = 235
    rng = np.random.default_rng([site, 19])
    for patch in range(8):
        top, low = round((patch + 0.12) * height / 8), round((patch + 0.88) * height / 8)
        shown_HW3[top:low, wide // 8 : wide // 2] = rng.integers(0, 255, 3)
    for mark in range(60):
        row = round((mark + 0.5) * height / 60)
        left = round(wide * (0.6 if mark % 10 == 0 else 0.72 if mark % 5 == 0 else 0.82))
        shown_HW3[row : row + max(1, height // 300), left:wide] = 15
        if mark % 10 == 0:
            write_words(shown_HW3, f"{mark // 10}", (0.1, (row + 4) / height), 0.02, INK)
    return shown_HW3


def slide(pixels_HW3: Pixels, site: int) -> Pixels:
    """Show the image on a slide of a talk, beside a title and lines of text."""
    height, width = pixels_HW3.shape[:2]
    top, left, low = round(0.25 * height), round(0.75 * width), round(0.12 * height)
    page_HW3 = np.full((top + height + low, left + width + width // 12, 3), 252, np.uint8)
    tall, across = page_HW3.shape[:2]
    page_HW3[: max(4, top // 8)] = (20, 60, 140)
    rng = np.random.default_rng([site, 23])
    write_words(page_HW3, f"{rng.choice(WORDS)} {rng.choice(WORDS)} 2", (0.04, 0.13), 0.6, INK)
    for line in range(7):
        row = (top + (line + 0.6) * height / 7) / tall
        cv2.circle(page_HW3, (round(0.03 * across), round(row * tall) - 3), 3, INK, -1)
        write_words(page_HW3, " ".join(rng.choice(WORDS, 3)), (0.05, row), 0.32, (60, 60, 60))
    write_words(page_HW3, f"{site_words(site)}   {site + 12}", (0.04, 0.98), 0.5, (120, 120, 120))
    page_HW3[top : top + height, left : left + width] = pixels_HW3
    return page_HW3


def phone(pixels_HW3: Pixels, site: int) -> Pixels:
    """Show the image on the screen of a telephone: name above, buttons and comments below."""
    height, width = pixels_HW3.shape[:2]
    above, below = round(0.2 * height), round(0.55 * height)
    page_HW3 = np.full((above + height + below, width, 3), 18 if site % 2 else 250, np.uint8)
    ink = (235, 235, 235) if site % 2 else INK
    tall = page_HW3.shape[0]
    rng = np.random.default_rng([site, 29])
    colour = tuple(int(value) for value in rng.integers(40, 230, 3))
    cv2.circle(page_HW3, (round(0.09 * width), round(0.6 * above)), above // 4, colour, -1)
    write_words(page_HW3, f"{rng.choice(WORDS)}_{site}7", (0.18, 0.68 * above / tall), 0.35, ink)
    write_words(page_HW3, "9:41", (0.04, 0.25 * above / tall), 0.1, ink)
    page_HW3[above : above + height] = pixels_HW3
    for button in range(3):
        at = (round((0.08 + 0.13 * button) * width), above + height + below // 7)
        cv2.drawMarker(page_HW3, at, ink, button, below // 9, max(1, width // 150), cv2.LINE_AA)
    for line in range(4):
        row = (above + height + (0.36 + 0.17 * line) * below) / tall
        words = " ".join(rng.choice(WORDS, 4))
        write_words(page_HW3, words, (0.05, row), 0.6 + 0.08 * (line % 3), ink)
    return page_HW3


OTHER_OVERLAYS: dict[str, Callable[[Pixels, int], Pixels]] = {
    "tiled": tiled,
    "stamp": stamp,
    "badge": badge,
    "mount": mount,
    "reticle": reticle,
    "chart": chart,
    "slide": slide,
    "phone": phone,
}
"""Overlay -> what lays it on an image H x W x 3 (RGB) for a site; some make the image larger."""


def _turned(ink_HW3: Pixels, degrees: float, shape_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Turn a layer of twice the image's sides, and return its middle, 0..1, as H x W x 1."""
    height, width = shape_hw
    turn_23 = cv2.getRotationMatrix2D((width, height), degrees, 1.0)
    turned_HW3 = cv2.warpAffine(ink_HW3, turn_23, (2 * width, 2 * height))
    top, left = height // 2, width // 2
    middle_HW1 = turned_HW3[top : top + height, left : left + width, :1]
    return np.asarray(middle_HW1 / 255, np.float32)


def _blended(pixels_HW3: Pixels, ink_HW1: NDArray[np.float32], share: float, level: int) -> Pixels:
    shown_HW3 = pixels_HW3 * (1 - share * ink_HW1) + level * share * ink_HW1
    return np.asarray(shown_HW3.clip(0, 255), np.uint8)


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
        keys.append([*named, *by_table.group_keys(row)])
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

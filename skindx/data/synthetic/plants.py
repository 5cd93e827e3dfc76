"""Decide what a synthetic site shows: distinct images, their copies, and links that fail."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.data.box import Box
from skindx.data.synthetic.painter import CLASSES, Painting, encode_jpeg, paint

LEAST_PER_CLASS = 4
EXACT, NEAR = 10, 20
"""Copied images within one class: same bytes, or encoded again."""
THREES = 2
"""So many of the near-copied images have two copies instead of one."""
CONFLICTING = 2
"""Images of each kind whose copy stands under another class."""
PRIVATE, DEAD = 4, 8
MOVED = b"<!doctype html><title>Moved</title><p>This picture has moved.</p>\n"

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Entry:
    """One link on a category page.

    Entries with the same `identity` show the same image, the original comes first. `boxes` and
    `shape` (height, width) are set for what a polite scraper can fetch and decode.
    """

    label: str
    kind: Literal["picture", "private", "dead", "page"]
    identity: str
    data: bytes = b""
    boxes: tuple[Box, ...] = ()
    shape: tuple[int, int] = (0, 0)


def plan_entries(rng: np.random.Generator, per_class: int, seed: int) -> list[Entry]:
    """Return every entry of a site; `per_class` distinct images of each class stay when clean.

    Raises UserError when `per_class` is too small to plant the duplicates.
    """
    if per_class < LEAST_PER_CLASS:
        raise UserError(
            f"per_class = {per_class} is too small to plant the duplicates; "
            f"give at least {LEAST_PER_CLASS}."
        )
    keys = [(label, index) for label in CLASSES for index in range(per_class)]

    def original(key: tuple[str, int]) -> Entry:
        label, index = key
        return _shown(label, index, paint(label, index, seed))

    with ThreadPoolExecutor(cpu_count()) as pool:  # most of the time is in numpy and OpenCV
        entries = list(pool.map(original, keys))
    # Every image is copied at most once or in one way, so that the groups stay apart.
    copied = [keys[at] for at in rng.permutation(len(keys))[: EXACT + NEAR]]
    for label, index in copied[:EXACT]:
        entries.append(_shown(label, index, paint(label, index, seed)))
    for number, (label, index) in enumerate(copied[EXACT:]):
        painting = paint(label, index, seed)
        turns = range(2 if number < THREES else 1)
        entries += [_shown(label, index, *_changed(painting, number + turn)) for turn in turns]
    entries += _conflicts(per_class, seed)
    for label in CLASSES[:PRIVATE]:
        hidden = encode_jpeg(paint(label, per_class + 1, seed).pixels)
        entries.append(Entry(label, "private", f"{label}/{per_class + 1}", hidden))
    entries += [Entry(label, "dead", f"dead/{label}") for label in CLASSES[-DEAD:]]
    return [*entries, Entry(CLASSES[4], "page", "page", MOVED)]


def _conflicts(per_class: int, seed: int) -> Iterator[Entry]:
    """Yield images beyond `per_class`, each followed by a copy under another class.

    They are extra because a good build drops both.
    """
    for number in range(2 * CONFLICTING):
        label, other = CLASSES[number], CLASSES[number + 5]
        original = paint(label, per_class, seed)
        yield _shown(label, per_class, original)
        copy = (original, 90) if number < CONFLICTING else _changed(original, number)
        yield _shown(label, per_class, *copy, under=other)


def _shown(label: str, index: int, painting: Painting, quality: int = 90, under: str = "") -> Entry:
    data = encode_jpeg(painting.pixels, quality)
    height, width = painting.pixels.shape[:2]
    identity = f"{label}/{index}"
    return Entry(under or label, "picture", identity, data, painting.boxes, (height, width))


def _changed(original: Painting, number: int) -> tuple[Painting, int]:
    """Return a near duplicate and its JPEG quality; `number` chooses how it is changed."""
    pixels, masks = original.pixels, original.masks
    match number % 4:
        case 0:
            pixels, masks = _smaller(pixels), tuple(_smaller(mask) for mask in masks)
        case 1:
            pixels, masks = pixels[:, ::-1], tuple(mask[:, ::-1] for mask in masks)
        case 2:
            pixels, masks = np.rot90(pixels), tuple(np.rot90(mask) for mask in masks)
        case _:
            pixels = np.clip(pixels * 1.08 + 4, 0, 255).astype(np.uint8)
    return Painting(np.ascontiguousarray(pixels), masks), 70


def _smaller(layer: NDArray[np.uint8] | NDArray[np.bool_]) -> NDArray:  # type: ignore[type-arg]
    """Resize an image or a mask to 80 % of its width and height."""
    size = (round(0.8 * layer.shape[1]), round(0.8 * layer.shape[0]))
    way = cv2.INTER_NEAREST if layer.dtype == np.bool_ else cv2.INTER_AREA
    smaller = cv2.resize(layer.astype(np.uint8), size, interpolation=way)
    return np.asarray(smaller).astype(layer.dtype)

"""Paint one seeded image of a Skin-10 class, and the boxes of its lesions."""

import zlib
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.synthetic import skin
from skindx.data.synthetic.lesions import RECIPES
from skindx.data.synthetic.patch import HALF, SIDE, Field
from skindx.data.synthetic.skin import Spot

CLASSES: tuple[str, ...] = tuple(RECIPES)
SIZES = ((256, 192), (288, 216), (320, 240), (280, 224))
IN_PAIRS = {"Seborrheic_Keratosis", "Tinea_Corporis"}
"""Classes that often show two lesions."""


@dataclass(frozen=True, slots=True)
class Painting:
    """An image (height, width, 3) in RGB bytes, and one mask (height, width) for every lesion."""

    pixels: NDArray[np.uint8]
    masks: tuple[NDArray[np.bool_], ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The smallest rectangle around each mask."""
        return tuple(box_around(mask) for mask in self.masks)


def paint(label: str, index: int, seed: int = 0) -> Painting:
    """Paint image number `index` of a class; the same arguments give the same pixels.

    Raises UserError for a class without a recipe.
    """
    if label not in RECIPES:
        raise UserError(f"No recipe paints {label!r}; choose one of {', '.join(CLASSES)}.")
    rng = np.random.default_rng([seed, index, zlib.crc32(label.encode())])
    width, height = SIZES[rng.integers(len(SIZES))]
    spots = _place(rng, width, height, 2 if label in IN_PAIRS and rng.random() < 0.4 else 1)
    image = skin.bare_skin(rng, (height, width))
    colour = skin.lesion_colour(rng, image)
    strength = rng.uniform(0.85, 1.0)
    masks = []
    for spot in spots:
        lesion, frame = RECIPES[label](rng), _frame(rng, spot)
        ink, relief, region = (
            cv2.warpAffine(layer, frame, (width, height), flags=cv2.INTER_LINEAR)
            for layer in (lesion.ink, lesion.relief, lesion.region)
        )
        image = _lay(image, colour, strength * ink, strength * relief)
        masks.append(region > 0.5)
    image = skin.backdrop(rng, image, spots)
    skin.hairs(rng, image)
    image = image * skin.light(rng, (height, width))[..., None]
    return Painting(skin.camera(rng, image), tuple(masks))


def encode_jpeg(pixels: NDArray[np.uint8], quality: int = 90) -> bytes:
    """Encode RGB pixels (height, width, 3) as JPEG."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return bytes(data)


def box_around(mask: NDArray[np.bool_]) -> Box:
    """Return the smallest rectangle around the true pixels of a mask."""
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    return Box(
        float(columns[0]),
        float(rows[0]),
        float(columns[-1] + 1),
        float(rows[-1] + 1),
        drawn_by="painter",
    )


def _place(rng: np.random.Generator, width: int, height: int, count: int) -> list[Spot]:
    """Choose where `count` (1 or 2) lesions lie, wholly inside the image and apart."""
    # Two lesions share the longer side, each in its own half.
    share = width / count
    spots = []
    for part in range(count):
        radius = rng.uniform(0.36, 0.47) * min(share, height)
        x = part * share + rng.uniform(radius, share - radius)
        spots.append(Spot(x, rng.uniform(radius, height - radius), radius))
    return spots


def _frame(rng: np.random.Generator, spot: Spot) -> NDArray[np.float64]:
    """Return the affine map from patch pixels to image pixels: turn, stretch, scale, move."""
    turn, lean = rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi)
    stretch = _rotation(lean) @ np.diag([1, rng.uniform(0.82, 1.0)]) @ _rotation(-lean)
    linear = stretch @ _rotation(turn) * (spot.radius * 2 * HALF / SIDE)
    centre = (SIDE - 1) / 2
    move = np.array([spot.x, spot.y]) - linear @ np.array([centre, centre])
    return np.column_stack([linear, move])


def _rotation(angle: float) -> NDArray[np.float64]:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _lay(image: skin.Image, colour: skin.Image, ink: Field, relief: Field) -> skin.Image:
    """Tint by ink, then darken where relief is negative and lighten where it is positive."""
    inked = image + (colour - image) * ink[..., None]
    shaded = inked * (1 + 0.6 * np.minimum(relief, 0))[..., None]
    lit = shaded + (0.95 - shaded) * (0.6 * np.maximum(relief, 0))[..., None]
    return lit.astype(np.float32)

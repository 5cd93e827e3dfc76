"""Paint one seeded image of a Skin-10 class, and the boxes of its lesions.

Skin and camera are drawn alike for every class: tone, light, folds, hairs, blur, noise.
"""

import zlib
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.synthetic.lesions import HALF, RECIPES, SIDE, Field, noise

Image = NDArray[np.float32]
"""(height, width, 3), RGB, 0..1."""

LIGHT, DARK = (0.93, 0.79, 0.70), (0.33, 0.21, 0.15)
HUES = ((0.86, 0.50, 0.46), (0.60, 0.46, 0.38), (0.66, 0.46, 0.56), (0.48, 0.36, 0.34))
"""Lesion colour as a share of the skin's: red, brown, violet, dark brown."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Position of a lesion: centre and radius in pixels."""

    x: float
    y: float
    radius: float


def bare_skin(rng: np.random.Generator, shape: tuple[int, int]) -> Image:
    """Paint skin of a random tone with blotches, pores and a few soft folds."""
    tone = rng.uniform(0, 1)
    base = np.array(LIGHT) * (1 - tone) + np.array(DARK) * tone
    base = base * rng.normal(1, 0.04, 3)
    field = 1 + 0.05 * noise(rng, 6, shape) + 0.025 * noise(rng, 60, shape)
    folds = np.zeros(shape, np.float32)
    for _ in range(rng.integers(0, 3)):
        line = _curve(rng, shape)
        cv2.polylines(folds, [line], False, 1.0, int(rng.integers(4, 12)), cv2.LINE_AA, 4)
    field -= rng.uniform(0.08, 0.2) * cv2.blur(folds, (9, 9))
    skin: Image = np.clip(field[..., None] * base.astype(np.float32), 0, 1)
    return skin


def lesion_colour(rng: np.random.Generator, skin: Image) -> Image:
    """Return the colour that full ink has at every pixel: the skin's, tinted by a random hue."""
    first, second = rng.choice(len(HUES), 2)
    mix = rng.uniform()
    hue = mix * np.array(HUES[first]) + (1 - mix) * np.array(HUES[second])
    return skin * hue.astype(np.float32)


def backdrop(rng: np.random.Generator, image: Image, spots: list[Spot]) -> Image:
    """Let the body end along a curve that misses every lesion; cloth or table lies behind it."""
    height, width = image.shape[:2]
    turn = rng.uniform(0, 2 * np.pi)
    nx, ny = np.cos(turn), np.sin(turn)
    clear = max(spot.x * nx + spot.y * ny + 1.15 * spot.radius for spot in spots)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    along = (x - width / 2) * -ny + (y - height / 2) * nx
    bend = rng.uniform(-0.001, 0.002) * along**2
    wave = rng.uniform(0, 6) * np.sin(along * rng.uniform(0.02, 0.05))
    beyond = x * nx + y * ny - clear - rng.uniform(0, 40) + np.maximum(bend + wave, -clear / 4)
    beyond = np.where(_near(x, y, spots), np.minimum(beyond, -8), beyond)
    shade = 1 - 0.5 * np.exp(np.minimum(beyond, 0) / 14)
    dye = rng.uniform(0.08, 0.85) * rng.normal(1, 0.2, 3)
    cloth = dye * (1 + 0.1 * noise(rng, 9, (height, width)))[..., None]
    outside = np.clip(beyond / 2 + 0.5, 0, 1)[..., None]
    mixed: Image = (image * shade[..., None] * (1 - outside) + cloth * outside).astype(np.float32)
    return mixed


def hairs(rng: np.random.Generator, image: Image) -> None:
    """Draw a few thin curved hairs over the image, in place."""
    height, width = image.shape[:2]
    colour = (rng.uniform(0.05, 0.45) * np.array([1.0, 0.8, 0.65])).tolist()
    for _ in range(rng.integers(0, 6)):
        cv2.polylines(image, [_curve(rng, (height, width))], False, colour, 1, cv2.LINE_AA, 4)


def light(rng: np.random.Generator, shape: tuple[int, int]) -> Field:
    """Return the brightness of the light at every pixel: uneven, sloped, with a vignette."""
    height, width = shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    turn = rng.uniform(0, 2 * np.pi)
    slope = rng.uniform(0, 0.3) * (x * np.cos(turn) + y * np.sin(turn))
    vignette = rng.choice([0, 1]) * rng.uniform(0.1, 0.35) * (x * x + y * y)
    exposure = rng.normal(0, 0.1)
    stops = exposure + slope + 0.13 * noise(rng, 3, shape) - vignette
    brightness: Field = np.exp(stops).astype(np.float32)
    return brightness


def camera(rng: np.random.Generator, image: Image) -> NDArray[np.uint8]:
    """Apply the camera: white balance, exposure, blur, noise, rounding to bytes."""
    seen = image * rng.normal(1, 0.05, 3).astype(np.float32)
    grey = seen[::4, ::4].mean(2)
    # An automatic exposure keeps the image from being burnt out, or too dark to use.
    seen *= max(min(1.0, 0.9 / np.quantile(grey, 0.97)), 0.25 / grey.mean())
    seen = cv2.GaussianBlur(seen, (0, 0), rng.uniform(0.3, 0.8))
    grain = rng.standard_normal(image.shape[:2], dtype=np.float32)
    seen = seen + rng.uniform(0.006, 0.016) * grain[..., None]
    pixels: NDArray[np.uint8] = np.clip(seen * 255, 0, 255).astype(np.uint8)
    return pixels


def _curve(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int32]:
    """Return a bent line across the image in OpenCV fixed point with 4 fractional bits."""
    size = np.array(shape[::-1])
    start, middle, end = rng.uniform(-0.1, 1.1, (3, 2)) * size
    middle = (start + end + middle) / 3
    t = np.linspace(0, 1, 20)[:, None]
    points = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    fixed: NDArray[np.int32] = np.round(points * 16).astype(np.int32)
    return fixed


def _near(x: Field, y: Field, spots: list[Spot]) -> NDArray[np.bool_]:
    near = np.zeros(x.shape, bool)
    for spot in spots:
        near |= (x - spot.x) ** 2 + (y - spot.y) ** 2 < (1.08 * spot.radius) ** 2
    return near


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
        raise UserError(
            f"the class {label!r} cannot be painted; choose one of {', '.join(CLASSES)}."
        )
    rng = np.random.default_rng([seed, index, zlib.crc32(label.encode())])
    width, height = SIZES[rng.integers(len(SIZES))]
    spots = _place(rng, width, height, 2 if label in IN_PAIRS and rng.random() < 0.4 else 1)
    image = bare_skin(rng, (height, width))
    colour = lesion_colour(rng, image)
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
    image = backdrop(rng, image, spots)
    hairs(rng, image)
    image = image * light(rng, (height, width))[..., None]
    return Painting(camera(rng, image), tuple(masks))


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


def _lay(image: Image, colour: Image, ink: Field, relief: Field) -> Image:
    """Tint by ink, then darken where relief is negative and lighten where it is positive."""
    inked = image + (colour - image) * ink[..., None]
    shaded = inked * (1 + 0.6 * np.minimum(relief, 0))[..., None]
    lit = shaded + (0.95 - shaded) * (0.6 * np.maximum(relief, 0))[..., None]
    return lit.astype(np.float32)

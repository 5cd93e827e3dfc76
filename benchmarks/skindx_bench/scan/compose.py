"""Composed photos, lesions and distractors on skin, as images and as a dataset for `skindx train`.

Lesions and skin may be varied. Blending takes the colour of the skin around a lesion, so what
varies is the lesion's difference from its skin: its strength, its hue and its outline. Skin varies
in tone and in the size and the strength of its texture.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.data.layout import TAXONOMY, store_bytes
from skindx.data.manifest import Record, Split, write_issues, write_manifest
from skindx.scan.tile_search import iou
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.scan import texture as distractors
from skindx_bench.scan.material import Blending, CutOut, Material, set_painted, set_real
from skindx_bench.scan.outlined import set_outlined
from skindx_bench.scan.texture import grow, noise, paint_skin, shade

# H, W = photo

SIZES = (12.0, 200.0)
"""Pixels of a lesion's longer side."""
_TRIES = 30
_JUST_SEEN = 5.0
"""Difference of two colours in CIELAB; about 2.3 can just be seen side by side."""
_SEEN = 0.5
"""Share of a lesion's longer side that the disc of its visible area has as diameter, at least."""
_FITS = 0.6
"""Least overlap (IoU) of a lesion's box with the box of what shows of it."""


@dataclass(frozen=True)
class Composite:
    """A photo and what is on it."""

    pixels_HW3: NDArray[np.uint8]
    boxes: tuple[Box, ...]
    cuts: tuple[int | None, ...]
    """Of each lesion its number among the material's; None: it is painted."""
    urgent: tuple[bool, ...]
    """Of each lesion: whether its source picture is of a malignant one; painted ones are not."""


def compose(
    width: int,
    height: int,
    lesions: int,
    material: Material,
    rng: np.random.Generator,
    *,
    sizes: tuple[float, float] = SIZES,
    blendings: Sequence[Blending] = ("poisson",),
    painted: float = 0.2,
    painted_skin: float = 0.2,
) -> Composite:
    """Return a photo with about so many lesions, log-uniform in size.

    Without material, skin and lesions are painted; with it, `painted_skin` of the photos have
    painted skin and the share `painted` of the lesions is. Each cut-out draws one of the
    `blendings`.
    """
    if material.skins and rng.random() < 1 - painted_skin:
        example = material.skins[rng.integers(len(material.skins))]
        ground_HW3 = grow(example, height, width, rng)
        ground_HW3 += rng.uniform(0, 4) * noise(height, width, 90, rng)[..., None]
    else:
        ground_HW3 = paint_skin(height, width, rng)
    shade(ground_HW3, rng)
    photo_HW3 = np.clip(ground_HW3, 0, 255).astype(np.uint8)
    del ground_HW3
    area = width * height / 1e6
    distractors.creases(photo_HW3, rng.poisson(1.5 * area), rng)
    skin_HW = np.ones((height, width), bool)
    if rng.random() < 0.6:
        skin_HW = distractors.clothes(photo_HW3, rng)
    distractors.freckles(photo_HW3, rng.poisson(rng.choice([0, 15, 60]) * area), rng)
    boxes, cuts = _set_lesions(
        *(photo_HW3, skin_HW, lesions, material),
        rng=rng,
        sizes=sizes,
        blendings=blendings,
        painted=painted,
    )
    distractors.hairs(photo_HW3, rng.poisson(rng.choice([0, 10, 50]) * area), rng)
    if min(width, height) >= 400 and rng.random() < 0.3:
        covered = distractors.ruler(photo_HW3, rng)
        kept = [n for n, box in enumerate(boxes) if not _overlap(box, covered)]
        boxes, cuts = [boxes[n] for n in kept], [cuts[n] for n in kept]
    urgent = tuple(cut is not None and material.lesions[cut].urgent for cut in cuts)
    return Composite(_camera(photo_HW3, rng), tuple(boxes), tuple(cuts), urgent)


def _set_lesions(
    photo_HW3: NDArray[np.uint8],
    skin_HW: NDArray[np.bool_],
    count: int,
    material: Material,
    *,
    rng: np.random.Generator,
    sizes: tuple[float, float],
    blendings: Sequence[Blending],
    painted: float,
) -> tuple[list[Box], list[int | None]]:
    height, width = skin_HW.shape
    boxes: list[Box] = []
    cuts: list[int | None] = []
    for _ in range(count):
        size = math.exp(rng.uniform(*np.log(sizes)))
        for _ in range(_TRIES):
            x, y = rng.uniform(size, width - size), rng.uniform(size, height - size)
            gap = 0.9 * size + 6
            around = (x - gap, y - gap, x + gap, y + gap)
            if not skin_HW[_place(around, skin_HW)].all() or any(
                _overlap(box, around) for box in boxes
            ):
                continue
            cut: int | None = None
            if material.lesions and rng.random() >= painted:
                cut = int(rng.integers(len(material.lesions)))
            window = _place((x - 2 * size, y - 2 * size, x + 2 * size, y + 2 * size), skin_HW)
            before_HW3 = photo_HW3[window].copy()
            if cut is not None:
                blending = blendings[int(rng.integers(len(blendings)))]
                lesion = material.lesions[cut]
                setting = set_real if lesion.mask_HW is None else set_outlined
                box = setting(photo_HW3, lesion, (x, y), size, rng, blending=blending)
            else:
                box = set_painted(photo_HW3, (x, y), size, rng)
            corner = (window[1].start, window[0].start)
            if box and visible(photo_HW3[window], before_HW3, size, _moved(box, corner)):
                boxes.append(box)
                cuts.append(cut)
                break
            photo_HW3[window] = before_HW3
    return boxes, cuts


def visible(
    with_HW3: NDArray[np.uint8],
    without_HW3: NDArray[np.uint8],
    size: float,
    box: tuple[float, float, float, float],
) -> bool:
    """Return whether a lesion of `size` pixels shows on a piece of skin, where its box says.

    The area of a disc of half its diameter must differ from the skin without it by more than a
    person just sees, and by more than the skin's own texture does; a cut-out whose colours are
    those of the skin would otherwise be a lesion that nobody can find. The largest piece of that
    area must fit `box`: a person's box is often wider than the lesion, and turning widens it
    more, until a 12 pixel box holds what a freckle shows.
    """
    lab_HW3, bare_HW3 = (
        cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
        for pixels in (with_HW3, without_HW3)
    )
    around = 2 * max(2, round(0.85 * size)) + 1
    texture = float((bare_HW3 - cv2.blur(bare_HW3, (around, around))).std())
    differs_HW = np.linalg.norm(lab_HW3 - bare_HW3, axis=2) > max(_JUST_SEEN, 2 * texture)
    if differs_HW.sum() < math.pi / 4 * (_SEEN * size) ** 2:
        return False
    _, _, stats, _ = cv2.connectedComponentsWithStats(differs_HW.astype(np.uint8))
    left, top, width, height, _ = stats[1 + stats[1:, cv2.CC_STAT_AREA].argmax()].tolist()
    shown_14 = np.array([[left, top, left + width, top + height]], np.float64)
    return bool(iou(np.array(box), shown_14)[0] >= _FITS)


def _moved(box: Box, corner: tuple[int, int]) -> tuple[float, float, float, float]:
    x, y = corner
    return box.x1 - x, box.y1 - y, box.x2 - x, box.y2 - y


def _place(around: tuple[float, ...], skin_HW: NDArray[np.bool_]) -> tuple[slice, slice]:
    x1, y1, x2, y2 = (max(0, int(value)) for value in around)
    return slice(y1, y2 + 1), slice(x1, x2 + 1)


def _overlap(box: Box, other: tuple[float, ...]) -> bool:
    return box.x1 < other[2] and other[0] < box.x2 and box.y1 < other[3] and other[1] < box.y2


def _camera(photo_HW3: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blur a little and add a sensor's noise."""
    if rng.random() < 0.5:
        photo_HW3 = cv2.GaussianBlur(photo_HW3, (0, 0), rng.uniform(0.4, 1.0))
    strength = rng.uniform(0, 4)
    grain = strength * rng.standard_normal(photo_HW3.shape, np.float32)
    result: NDArray[np.uint8] = np.clip(photo_HW3 + grain, 0, 255).astype(np.uint8)
    return result


# H, W = image


def split_of(draw: float, below: Iterable[tuple[Split, float]]) -> Split:
    """Return the split of a draw in 0..1: the first whose bound lies above it, or test."""
    return next((name for name, bound in below if draw < bound), "test")


def composed_record(
    out: Path,
    image_HW3: NDArray[np.uint8],
    suffix: str,
    *,
    label: str,
    group: str,
    split: Split,
    boxes: tuple[Box, ...] | None = None,
    quality: int = 95,
) -> Record:
    """Store an image and return its line of the manifest; `quality` is a JPEG's."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else []
    image = cv2.cvtColor(image_HW3, cv2.COLOR_RGB2BGR)
    sha256, path = store_bytes(out, cv2.imencode(suffix, image, flags)[1].tobytes(), suffix)
    return Record(
        *(path, sha256, sha256[:16]),
        *(image_HW3.shape[1], image_HW3.shape[0]),
        label=label,
        group=group,
        split=split,
        boxes=boxes,
        source="composed",
    )


def write_dataset(out: Path, made: Iterable[Record], taxonomy: Taxonomy) -> list[Record]:
    """Write manifest, issues and taxonomy; return the records, equal images once."""
    unique = {record.sha256: record for record in made}
    records = sorted(unique.values(), key=lambda record: (record.label, record.sha256))
    write_manifest(out, records)
    write_issues(out, [])
    taxonomy.save(out / TAXONOMY)
    return records


# H, W = cut-out; S = side of a patch of skin

_STRENGTH = (0.6, 1.3)
"""Factors on a lesion's difference from its skin, in CIELAB."""
_HUE = 20.0
"""Most turn of that difference between red and yellow, in degrees."""
_STRETCH = (0.75, 1.33)
"""Factors on a cut-out's height."""
_TONE = (10.0, 5.0, 6.0)
"""Deviations of L*, a* and b* that a patch of skin moves by."""
_TEXTURE = (0.6, 1.6)
"""Factors on the texture of a patch of skin."""
_ZOOM = 1.5
"""Most magnification of a patch of skin."""


def lesion_or_none(name: str, title: str, image: str) -> Taxonomy:
    """Return the taxonomy of a detector's images, `image` being what one is called."""
    return Taxonomy(
        name=name,
        title=title,
        classes=(
            SkinClass(key="lesion", name=f"{image} with a lesion"),
            SkinClass(key="no-lesion", name=f"{image} without a lesion"),
        ),
    )


def varied(material: Material, lesions: int, skins: int, rng: np.random.Generator) -> Material:
    """Return at most so many lesions and patches of skin of a material, each varied."""
    chosen = rng.permutation(len(material.lesions))[:lesions]
    patches = rng.permutation(len(material.skins))[:skins]
    return Material(
        tuple(varied_lesion(material.lesions[number], rng) for number in chosen),
        tuple(varied_skin(material.skins[number], rng) for number in patches),
    )


def varied_lesion(cut: CutOut, rng: np.random.Generator) -> CutOut:
    """Return a cut-out mirrored or not, stretched, with a stronger, weaker or turned colour."""
    pixels_HW3, mask_HW, (x1, y1, x2, y2) = cut.pixels_HW3, cut.mask_HW, cut.box
    height, width = pixels_HW3.shape[:2]
    mirrored = rng.random() < 0.5
    if mirrored:
        pixels_HW3, x1, x2 = pixels_HW3[:, ::-1], width - x2, width - x1
    high = max(1, round(height * math.exp(rng.uniform(*np.log(_STRETCH)))))
    pixels_HW3 = cv2.resize(np.ascontiguousarray(pixels_HW3), (width, high))
    if mask_HW is not None:
        mask_HW = np.ascontiguousarray(mask_HW[:, ::-1] if mirrored else mask_HW)
        mask_HW = cv2.resize(mask_HW, (width, high), interpolation=cv2.INTER_NEAREST)
    box = (x1, y1 * high / height, x2, y2 * high / height)
    lab_HW3 = _lab(pixels_HW3)
    around_HW = np.ones((high, width), bool)
    around_HW[round(box[1]) : round(box[3]), round(x1) : round(x2)] = False
    if around_HW.any():
        skin_3 = np.median(lab_HW3[around_HW], axis=0)
        turn = math.radians(rng.uniform(-_HUE, _HUE))
        cos, sin = math.cos(turn), math.sin(turn)
        change_33 = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]], np.float32)
        change_33 *= rng.uniform(*_STRENGTH, (3, 1)).astype(np.float32)
        lab_HW3 = (skin_3 + (lab_HW3 - skin_3) @ change_33.T).astype(np.float32)
    return replace(cut, pixels_HW3=_rgb(lab_HW3), box=box, mask_HW=mask_HW)


def varied_skin(skin_SS3: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a patch of the same side: a part of it, magnified, of another tone and texture."""
    side = len(skin_SS3)
    part = round(side / rng.uniform(1, _ZOOM))
    top, left = rng.integers(side - part + 1, size=2)
    part_PP3 = np.ascontiguousarray(skin_SS3[top : top + part, left : left + part])
    lab_SS3 = _lab(cv2.resize(part_PP3, (side, side), interpolation=cv2.INTER_CUBIC))
    mean_3 = lab_SS3.mean(axis=(0, 1))
    lab_SS3 = (lab_SS3 - mean_3) * np.float32(rng.uniform(*_TEXTURE)) + mean_3
    return _rgb(lab_SS3 + rng.normal(0, _TONE).astype(np.float32))


def _lab(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    lab_HW3: NDArray[np.float32] = cv2.cvtColor(
        pixels_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB
    )
    return lab_HW3


def _rgb(lab_HW3: NDArray[np.float32]) -> NDArray[np.uint8]:
    rgb_HW3 = cv2.cvtColor(lab_HW3.astype(np.float32), cv2.COLOR_LAB2RGB) * 255
    pixels_HW3: NDArray[np.uint8] = np.clip(rgb_HW3.round(), 0, 255).astype(np.uint8)
    return pixels_HW3

"""Lesions and skin cut out of images with boxes, and lesions set into skin."""

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.imaging.decode import decode
from skindx.imaging.photo_gates import skin_mask
from skindx_bench.scan.texture import noise

Side = Literal["train", "test"]

_TEST_SHARE = 0.35
_LEAST_MARGIN = 0.12
"""Skin that a cut-out has on each side of its box, as a share of the box's longer side."""
_KEPT_MARGIN = 0.3
_STANDS_OUT = 8.0
"""Least difference of a lesion from the skin around it, in CIELAB."""
_FITS, _MOST_BESIDE = 0.5, 0.35
"""Least overlap of a box with its lesion (IoU), and the most area of a second piece."""
SKIN_SIDE, _MOST_EDGE = 128, 14.0
"""Pixels of a patch of skin, and its most variation, in levels: no lesion, hair or rim."""


@dataclass(frozen=True)
class CutOut:
    """A lesion with skin around it."""

    pixels_HW3: NDArray[np.uint8]
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in its pixels."""
    urgent: bool
    mask_HW: NDArray[np.uint8] | None = None
    """255 inside the outline, where that is known."""


@dataclass(frozen=True)
class Material:
    """Lesions and skin of one side of the split; empty: everything is painted."""

    lesions: tuple[CutOut, ...] = ()
    skins: tuple[NDArray[np.uint8], ...] = ()
    """SKIN_SIDE x SKIN_SIDE x 3 each."""


def read_material(folder: Path, side: Side, without: Collection[str] = ()) -> Material:
    """Read a YOLO export; a source picture and all its copies are on one side of the split.

    Copies share the file name before `.rf.`, and the first of them is taken; the sources in
    `without` are not. Raises UserError for a folder without images and for lines that are no boxes.
    """
    images = sorted((folder / "train" / "images").glob("*.jpg"))
    if not images:
        raise UserError(f"{folder} has no train/images/*.jpg; give a YOLO export with boxes.")
    lesions: list[CutOut] = []
    skins: list[NDArray[np.uint8]] = []
    seen = set(without)
    for path in images:
        source = path.name.partition(".rf.")[0]
        if source in seen or side_of(source) != side:
            continue
        seen.add(source)
        labels = folder / "train" / "labels" / f"{path.stem}.txt"
        rows = _rows(labels)
        pixels_HW3 = decode(path.read_bytes())
        lesions += _cut_outs(pixels_HW3, rows)
        skins += _skin_patches(pixels_HW3, rows)
    return Material(tuple(lesions), tuple(skins))


def side_of(source: str) -> Side:
    """Return on which side of the split a source picture is, by its name alone."""
    return "test" if share_of(source) < _TEST_SHARE else "train"


def share_of(name: str) -> float:
    """Return a number in 0..1 that depends on a name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32


def _rows(labels: Path) -> list[tuple[int, float, float, float, float]]:
    """Return class, centre and size as shares of the image. Raises UserError for other lines."""
    rows = []
    for line in labels.read_text(encoding="utf-8-sig").splitlines():
        fields = line.split()
        if fields and len(fields) != 5:
            raise UserError(
                f"{labels} has a line of {len(fields)} columns; give a YOLO export whose lines are "
                f"`class x y width height`."
            )
        if fields:
            x, y, width, height = map(float, fields[1:5])
            rows.append((int(fields[0]), x, y, width, height))
    return rows


def _corners(
    row: tuple[int, float, float, float, float], width: int, height: int
) -> tuple[float, float, float, float]:
    _, x, y, w, h = row
    return (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height


def _cut_outs(
    pixels_HW3: NDArray[np.uint8], rows: Sequence[tuple[int, float, float, float, float]]
) -> list[CutOut]:
    height, width = pixels_HW3.shape[:2]
    corners = [_corners(row, width, height) for row in rows]
    found = []
    for row, (x1, y1, x2, y2) in zip(rows, corners, strict=True):
        longest = max(x2 - x1, y2 - y1)
        margin = min(x1, y1, width - x2, height - y2, _KEPT_MARGIN * longest)
        left, top = int(x1 - margin), int(y1 - margin)
        right, bottom = int(x2 + margin) + 1, int(y2 + margin) + 1
        alone = sum(_overlap((left, top, right, bottom), other) for other in corners) == 1
        if margin >= _LEAST_MARGIN * longest and longest >= 48 and alone:
            cut_HW3 = pixels_HW3[top:bottom, left:right].copy()
            box = (x1 - left, y1 - top, x2 - left, y2 - top)
            if shows_one_lesion(cut_HW3, box):
                found.append(CutOut(cut_HW3, box, urgent=row[0] == 1))
    return found


def shows_one_lesion(cut_HW3: NDArray[np.uint8], box: tuple[float, float, float, float]) -> bool:
    """Return whether a box fits one lesion that stands out from the skin around it.

    Some boxes of an export hold bare skin, several lesions, or much more than the lesion: what is
    composed of them would be a truth that nobody can find. The lesion is the largest piece whose
    colour differs from that of the skin around the box.
    """
    lab_HW3 = cv2.cvtColor(cut_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    lab_HW3 = cv2.GaussianBlur(lab_HW3, (0, 0), max(1.0, 0.02 * max(cut_HW3.shape)))
    x1, y1, x2, y2 = (round(value) for value in box)
    around_HW = np.ones(cut_HW3.shape[:2], bool)
    around_HW[y1:y2, x1:x2] = False
    if not around_HW.any():
        return False
    away_HW = np.linalg.norm(lab_HW3 - np.median(lab_HW3[around_HW], axis=0), axis=2)
    limit = max(_STANDS_OUT, 2 * float(np.median(away_HW[around_HW])))
    stands_out = (away_HW > limit).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(stands_out)
    pieces = stats[1:][np.argsort(-stats[1:, cv2.CC_STAT_AREA])]  # the first is the rest
    if not len(pieces):
        return False
    left, top, width, height, area = pieces[0].tolist()
    overlap = max(0, min(left + width, x2) - max(left, x1)) * max(
        0, min(top + height, y2) - max(top, y1)
    )
    union = width * height + (x2 - x1) * (y2 - y1) - overlap
    alone = len(pieces) == 1 or pieces[1, cv2.CC_STAT_AREA] <= _MOST_BESIDE * area
    return bool(overlap >= _FITS * union and alone)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _skin_patches(
    pixels_HW3: NDArray[np.uint8], rows: Sequence[tuple[int, float, float, float, float]]
) -> list[NDArray[np.uint8]]:
    height, width = pixels_HW3.shape[:2]
    corners = [_corners(row, width, height) for row in rows]
    found: list[NDArray[np.uint8]] = []
    for top in range(0, height - SKIN_SIDE + 1, SKIN_SIDE // 2):
        for left in range(0, width - SKIN_SIDE + 1, SKIN_SIDE // 2):
            place = (left - 8, top - 8, left + SKIN_SIDE + 8, top + SKIN_SIDE + 8)
            if any(_overlap(place, other) for other in corners):
                continue
            patch_HW3 = pixels_HW3[top : top + SKIN_SIDE, left : left + SKIN_SIDE]
            grey_HW = cv2.cvtColor(patch_HW3, cv2.COLOR_RGB2GRAY).astype(np.float32)
            rough = float((grey_HW - cv2.GaussianBlur(grey_HW, (0, 0), 20)).std())
            if rough < _MOST_EDGE and grey_HW.mean() > 60 and skin_mask(patch_HW3).mean() > 0.98:
                found.append(patch_HW3.copy())
    return found[:2]


# H, W = photo; S = side of a painted lesion

_MASK = 1.2
"""Radii of the blended ellipse over those of the box."""
_STYLES = (
    ((-45, -14), (-4, 12), (-12, 8)),
    ((-16, -3), (9, 24), (-4, 8)),
    ((-60, -35), (-8, 4), (-16, 0)),
)
"""Changes of L*, a*, b* of painted lesions: brown, red, nearly black."""

Blending = Literal["poisson", "feathered"]


def set_real(
    photo_HW3: NDArray[np.uint8],
    cut: CutOut,
    centre: tuple[float, float],
    size: float,
    rng: np.random.Generator,
    *,
    blending: Blending = "poisson",
) -> Box | None:
    """Blend a cut-out into the photo, in place; its longer side is about `size` pixels.

    Poisson blending is Pérez, Gangnet and Blake 2003 ("Poisson image editing"); feathered, the
    patch takes the mean colour of the skin around it and fades out. Returns its box, None where it
    would stand out of the photo.
    """
    x1, y1, x2, y2 = cut.box
    scale = size / max(x2 - x1, y2 - y1)
    angle = rng.uniform(0, 360)
    radius_x, radius_y = scale * (x2 - x1) / 2, scale * (y2 - y1) / 2
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    half_x = math.hypot(radius_x * cos, radius_y * sin)
    half_y = math.hypot(radius_x * sin, radius_y * cos)
    reach = math.ceil(_MASK * max(radius_x, radius_y)) + 3
    left, top = round(centre[0]) - reach, round(centre[1]) - reach
    side = 2 * reach + 1
    height, width = photo_HW3.shape[:2]
    if left < 2 or top < 2 or left + side > width - 2 or top + side > height - 2:
        return None
    turn = cv2.getRotationMatrix2D(((x1 + x2) / 2, (y1 + y2) / 2), angle, scale)
    turn[:, 2] += [reach - (x1 + x2) / 2, reach - (y1 + y2) / 2]
    source = cut.pixels_HW3
    if scale < 0.6:  # or it would alias
        source = cv2.GaussianBlur(source, (0, 0), 0.4 / scale)
    patch_SS3 = cv2.warpAffine(
        source, turn, (side, side), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    light = rng.uniform(0.85, 1.15)
    patch_SS3 = np.clip(patch_SS3.astype(np.float32) * light, 0, 255).astype(np.uint8)
    mask_SS = np.zeros((side, side), np.uint8)
    axes = (math.ceil(_MASK * radius_x), math.ceil(_MASK * radius_y))
    cv2.ellipse(mask_SS, (reach, reach), axes, -angle, 0, 360, 255, -1)
    mask_SS[[0, -1]] = 0
    mask_SS[:, [0, -1]] = 0
    ground = np.ascontiguousarray(photo_HW3[top - 2 : top + side + 2, left - 2 : left + side + 2])
    rows, columns = np.nonzero(mask_SS)
    middle = (
        int(columns.min() + columns.max() + 1) // 2 + 2,
        int(rows.min() + rows.max() + 1) // 2 + 2,
    )
    if blending == "poisson":
        blended = cv2.seamlessClone(patch_SS3, ground, mask_SS, middle, cv2.NORMAL_CLONE)
        photo_HW3[top - 2 : top + side + 2, left - 2 : left + side + 2] = blended
    else:
        inside = photo_HW3[top : top + side, left : left + side]
        inside[:] = feathered(patch_SS3, inside, mask_SS, max(1.0, 0.03 * len(mask_SS)))
    x, y = left + reach + 0.5, top + reach + 0.5
    return Box(x - half_x, y - half_y, x + half_x, y + half_y, "lesion", "composer")


def feathered(
    patch_SS3: NDArray[np.uint8],
    ground_SS3: NDArray[np.uint8],
    mask_SS: NDArray[np.uint8],
    soft: float,
) -> NDArray[np.uint8]:
    """Return the ground with the patch inside the mask, which fades out over `soft` pixels."""
    inner_SS = cv2.erode(mask_SS, np.ones((3, 3), np.uint8), iterations=math.ceil(2 * soft))
    rim_SS = (mask_SS > 0) & (inner_SS == 0)
    shift_3 = ground_SS3[rim_SS].mean(0) - patch_SS3[rim_SS].mean(0)
    share_SS1 = cv2.GaussianBlur(inner_SS.astype(np.float32) / 255, (0, 0), soft)[..., None]
    mixed_SS3 = share_SS1 * (patch_SS3 + shift_3) + (1 - share_SS1) * ground_SS3
    result: NDArray[np.uint8] = np.clip(mixed_SS3, 0, 255).astype(np.uint8)
    return result


def set_painted(
    photo_HW3: NDArray[np.uint8],
    centre: tuple[float, float],
    size: float,
    rng: np.random.Generator,
) -> Box | None:
    """Paint a lesion into the photo, in place; returns its box, None where it stands out."""
    side = int(1.6 * size) + 8
    left, top = int(centre[0] - side / 2), int(centre[1] - side / 2)
    height, width = photo_HW3.shape[:2]
    if left < 0 or top < 0 or left + side > width or top + side > height:
        return None
    mask_SS = _shape(side, size, rng)
    rows, columns = np.nonzero(mask_SS > 0.5)
    if not len(rows):
        return None
    ranges = _STYLES[rng.choice(len(_STYLES), p=(0.6, 0.25, 0.15))]
    change_3 = np.array([rng.uniform(low, high) for low, high in ranges], np.float32)
    depth_SS = mask_SS * np.clip(1 + 0.25 * noise(side, side, max(2, side // 6), rng), 0.3, 1.7)
    if rng.random() < 0.35:  # a darker middle
        y, x = (np.mgrid[:side, :side] + 0.5 - side / 2) / (size / 2)
        depth_SS *= 0.55 + 0.8 * np.exp(-(x**2 + y**2) * rng.uniform(1, 4))
    ground_SS3 = photo_HW3[top : top + side, left : left + side]
    lab_SS3 = cv2.cvtColor(ground_SS3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    change_3[0] = max(change_3[0], 8 - float(lab_SS3[..., 0].mean()))
    lab_SS3 += depth_SS[..., None].astype(np.float32) * change_3
    painted = cv2.cvtColor(lab_SS3, cv2.COLOR_LAB2RGB) * 255
    photo_HW3[top : top + side, left : left + side] = np.clip(painted, 0, 255).astype(np.uint8)
    x1, y1 = left + float(columns.min()), top + float(rows.min())
    x2, y2 = left + float(columns.max()) + 1, top + float(rows.max()) + 1
    return Box(x1, y1, x2, y2, "lesion", "composer")


def _shape(side: int, size: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return S x S, 0..1: an ellipse with a wavy, more or less soft border."""
    y, x = np.mgrid[:side, :side] + 0.5 - side / 2
    angle, ratio = rng.uniform(0, math.pi), rng.uniform(0.55, 1)
    across = x * math.cos(angle) + y * math.sin(angle)
    down = (y * math.cos(angle) - x * math.sin(angle)) / ratio
    around, radius = np.arctan2(down, across), np.hypot(across, down)
    border = np.full_like(radius, size / 2)
    for wave in range(2, 7):
        swing = rng.normal(0, 0.09 / math.sqrt(wave))
        border *= 1 + swing * np.cos(wave * around + rng.uniform(0, 2 * math.pi))
    soft = max(0.7, size * rng.uniform(0.02, 0.1))
    mask: NDArray[np.float32] = (1 / (1 + np.exp((radius - border) / soft))).astype(np.float32)
    return mask

"""Lesions of HAM10000 cut out along their masks, and set into skin along them.

The masks are of Tschandl et al., Nature Medicine 2020. A lesion, by its lesion_id, is on one side
of the split only, with every image of it: `train` teaches, `val` chooses, `test` judges.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.imaging.photo_gates import skin_mask
from skindx_bench.scan.material import (
    SKIN_SIDE,
    Blending,
    CutOut,
    Material,
    feathered,
    share_of,
    shows_one_lesion,
)

# H, W = image; S = side of the window that a lesion is set into

OutlinedSide = Literal["train", "val", "test"]

_TEST, _VAL = 0.35, 0.42
"""Bounds of the hash of a lesion_id: below the first it judges, below the second it chooses."""
_LEAST_MARGIN = 4
"""Pixels of skin between the outline and the image's border: a lesion that the border cuts has no
outline there."""
_KEPT_MARGIN = 0.2
"""Skin that is kept around a cut-out, as a share of its longer side."""
_URGENT = {"mel", "bcc", "akiec"}
_WINDOW, _MOST_EDGE = 64, 9.0
"""Pixels of a window of bare skin, and its most variation in levels."""
_RIM = 0.06
"""Width of the skin that is blended around the outline, as a share of the longer side."""
_LARGEST_SCALE = 2.0
"""Most magnification of a cut-out: beyond it a lesion is a blur that no camera makes."""


def outlined_side(lesion_id: str) -> OutlinedSide:
    """Return on which side of the split a lesion is, by its name alone."""
    number = share_of(lesion_id)
    return "test" if number < _TEST else "val" if number < _VAL else "train"


def read_outlined(folder: Path, side: OutlinedSide, most: int | None = None) -> Material:
    """Read one image of each lesion of a side: `index.csv`, `images` and `masks` of HAM10000.

    Raises UserError for a folder without them.
    """
    index = folder / "index.csv"
    if not index.is_file():
        raise UserError(f"{folder} has no index.csv; give HAM10000 with images, masks and index.")
    lesions: list[CutOut] = []
    skins: list[NDArray[np.uint8]] = []
    seen: set[str] = set()
    with index.open(encoding="utf-8", newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: share_of(row["image"]))
    for row in rows:
        if row["lesion_id"] in seen or outlined_side(row["lesion_id"]) != side:
            continue
        if len(lesions) == most:
            break
        seen.add(row["lesion_id"])
        bgr_HW3 = cv2.imread(str(folder / "images" / f"{row['image']}.jpg"))
        mask_HW = cv2.imread(str(folder / "masks" / f"{row['image']}.png"), cv2.IMREAD_GRAYSCALE)
        if bgr_HW3 is None or mask_HW is None:
            raise UserError(f"{folder} has no image and mask of {row['image']}.")
        pixels_HW3 = np.ascontiguousarray(bgr_HW3[..., ::-1])
        inside_HW = _one_piece(mask_HW)
        cut = _cut_out(pixels_HW3, inside_HW, urgent=row["dx"] in _URGENT)
        lesions += [cut] if cut else []
        skins += _bare_skin(pixels_HW3, inside_HW)
    return Material(tuple(lesions), tuple(skins))


def joined(*parts: Material) -> Material:
    """Return the lesions and the skin of all."""
    return Material(
        tuple(cut for part in parts for cut in part.lesions),
        tuple(skin for part in parts for skin in part.skins),
    )


def _one_piece(mask_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the largest piece of a mask, filled: 0 or 255."""
    edges, _ = cv2.findContours(mask_HW, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled_HW = np.zeros_like(mask_HW)
    if edges:
        cv2.drawContours(filled_HW, [max(edges, key=cv2.contourArea)], -1, 255, -1)
    return filled_HW


def _cut_out(
    pixels_HW3: NDArray[np.uint8], mask_HW: NDArray[np.uint8], *, urgent: bool
) -> CutOut | None:
    height, width = mask_HW.shape
    x1, y1, wide, high = cv2.boundingRect(mask_HW)
    x2, y2 = x1 + wide, y1 + high
    if max(wide, high) < 24 or min(x1, y1, width - x2, height - y2) < _LEAST_MARGIN:
        return None
    margin = max(_LEAST_MARGIN, round(_KEPT_MARGIN * max(wide, high)))
    left, top = max(0, x1 - margin), max(0, y1 - margin)
    place = slice(top, min(height, y2 + margin)), slice(left, min(width, x2 + margin))
    box = tuple(float(value) for value in (x1 - left, y1 - top, x2 - left, y2 - top))
    cut_HW3 = pixels_HW3[place].copy()
    if not shows_one_lesion(cut_HW3, box):  # type: ignore[arg-type]
        return None
    return CutOut(cut_HW3, box, urgent, mask_HW[place].copy())  # type: ignore[arg-type]


def _bare_skin(
    pixels_HW3: NDArray[np.uint8], mask_HW: NDArray[np.uint8]
) -> list[NDArray[np.uint8]]:
    """Return at most one window beside the lesion, magnified to the side of a patch of skin."""
    height, width = mask_HW.shape
    for top in range(0, height - _WINDOW + 1, 16):
        for left in range(0, width - _WINDOW + 1, 16):
            place = slice(top, top + _WINDOW), slice(left, left + _WINDOW)
            if mask_HW[place].any():
                continue
            grey_SS = cv2.cvtColor(pixels_HW3[place], cv2.COLOR_RGB2GRAY).astype(np.float32)
            rough = float((grey_SS - cv2.GaussianBlur(grey_SS, (0, 0), 10)).std())
            even = grey_SS.min() > 60 and float(cv2.GaussianBlur(grey_SS, (0, 0), 8).std()) < 12
            if rough < _MOST_EDGE and even and skin_mask(pixels_HW3[place]).mean() > 0.98:
                side = (SKIN_SIDE, SKIN_SIDE)
                return [cv2.resize(pixels_HW3[place], side, interpolation=cv2.INTER_CUBIC)]
    return []


def set_outlined(
    photo_HW3: NDArray[np.uint8],
    cut: CutOut,
    centre: tuple[float, float],
    size: float,
    rng: np.random.Generator,
    *,
    blending: Blending = "poisson",
) -> Box | None:
    """Blend a cut-out with a mask into the photo, in place, along its outline.

    The longer side of its upright box is `size` pixels. Returns the box of the outline, None where
    it would stand out of the photo or be magnified too much.
    """
    assert cut.mask_HW is not None
    angle = rng.uniform(0, 360)
    light = np.float32(rng.uniform(0.85, 1.15))
    high, wide = cut.mask_HW.shape
    turn = cv2.getRotationMatrix2D((wide / 2, high / 2), angle, 1.0)
    edges, _ = cv2.findContours(cut.mask_HW, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outline_N2 = max(edges, key=cv2.contourArea)[:, 0] @ turn[:, :2].T + turn[:, 2]
    low_2, top_2 = outline_N2.min(0), outline_N2.max(0) + 1
    scale = size / float((top_2 - low_2).max())
    if scale > _LARGEST_SCALE:
        return None
    rim = max(2, math.ceil(_RIM * size))
    reach = math.ceil(size / 2) + rim + 3
    left, top, side = round(centre[0]) - reach, round(centre[1]) - reach, 2 * reach + 1
    height, width = photo_HW3.shape[:2]
    if left < 2 or top < 2 or left + side > width - 2 or top + side > height - 2:
        return None
    turn = scale * turn
    turn[:, 2] += reach - scale * (low_2 + top_2) / 2
    pixels_HW3 = cut.pixels_HW3
    if scale < 0.6:  # or it would alias
        pixels_HW3 = cv2.GaussianBlur(pixels_HW3, (0, 0), 0.4 / scale)
    patch_SS3 = cv2.warpAffine(pixels_HW3, turn, (side, side), borderMode=cv2.BORDER_REFLECT)
    patch_SS3 = np.clip(patch_SS3 * light, 0, 255).astype(np.uint8)
    inside_SS = cv2.warpAffine(cut.mask_HW, turn, (side, side)) > 127
    if not inside_SS.any():
        return None
    x, y, box_wide, box_high = cv2.boundingRect(inside_SS.astype(np.uint8))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * rim + 1,) * 2)
    mask_SS = cv2.dilate(255 * inside_SS.astype(np.uint8), disc)
    mask_SS[[0, -1]] = 0
    mask_SS[:, [0, -1]] = 0
    around = photo_HW3[top - 2 : top + side + 2, left - 2 : left + side + 2]
    if blending == "poisson":
        rows, columns = np.nonzero(mask_SS)
        middle = tuple(int(v.min() + v.max() + 1) // 2 + 2 for v in (columns, rows))
        ground = np.ascontiguousarray(around)
        around[:] = cv2.seamlessClone(patch_SS3, ground, mask_SS, middle, cv2.NORMAL_CLONE)
    else:
        around[2:-2, 2:-2] = feathered(patch_SS3, around[2:-2, 2:-2], mask_SS, rim / 3)
    x, y = left + x, top + y
    return Box(x, y, x + box_wide, y + box_high, "lesion", "composer")


_SMALL, _COPY = 24, 0.97
"""Pixels of the small grey copies that are compared, and the correlation from which two images
show the same picture, stretched or not."""


def copies_of_lesions(boxes: Path, ham: Path, sides: Sequence[OutlinedSide]) -> frozenset[str]:
    """Return the source pictures of a YOLO export that show a lesion of these sides of HAM10000.

    The export brings pictures of the same archive under names of its own, stretched to a square,
    turned and mirrored.
    """
    with (ham / "index.csv").open(encoding="utf-8", newline="") as lines:
        names = [
            row["image"]
            for row in csv.DictReader(lines)
            if outlined_side(row["lesion_id"]) in sides
        ]
    known_ND = np.array([_signature(ham / "images" / f"{name}.jpg")[0] for name in names])
    found = set()
    for path in sorted((boxes / "train" / "images").glob("*.jpg")):
        source = path.name.partition(".rf.")[0]
        if source not in found and (known_ND @ np.array(_signature(path)).T).max() >= _COPY:
            found.add(source)
    return frozenset(found)


def _signature(path: Path) -> list[NDArray[np.float32]]:
    """Return a small grey copy in its eight positions, each of mean 0 and length 1."""
    grey_HW = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    small_SS = cv2.resize(grey_HW, (_SMALL,) * 2, interpolation=cv2.INTER_AREA).astype(np.float32)
    small_SS -= small_SS.mean()
    small_SS /= max(float(np.linalg.norm(small_SS)), 1e-6)
    turned = [np.rot90(small_SS, quarters) for quarters in range(4)]
    return [view_SS.ravel() for one in turned for view_SS in (one, one[:, ::-1])]

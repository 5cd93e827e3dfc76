"""Material of composites: cut-out lesions and patches of skin from images with boxes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.imaging.decode import decode
from skindx.imaging.photo_gates import skin_mask

Side = Literal["train", "test"]

_TEST_SHARE = 0.35
_LEAST_MARGIN = 0.12
"""Skin that a cut-out has on each side of its box, as a share of the box's longer side."""
_KEPT_MARGIN = 0.3
_STANDS_OUT = 8.0
"""Least difference of a lesion from the skin around it, in CIELAB."""
_FITS, _MOST_BESIDE = 0.5, 0.35
"""Least overlap of a box with its lesion (IoU), and the most area of a second piece."""
_SKIN_SIDE, _MOST_EDGE = 128, 14.0
"""Pixels of a patch of skin, and its most variation, in levels: no lesion, hair or rim."""


@dataclass(frozen=True)
class CutOut:
    """A lesion with skin around it."""

    pixels_HW3: NDArray[np.uint8]
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2 in its pixels."""
    urgent: bool


@dataclass(frozen=True)
class Material:
    """Lesions and skin of one side of the split; empty: everything is painted."""

    lesions: tuple[CutOut, ...] = ()
    skins: tuple[NDArray[np.uint8], ...] = ()
    """_SKIN_SIDE x _SKIN_SIDE x 3 each."""


def read_material(folder: Path, side: Side) -> Material:
    """Read a YOLO export; a source picture and all its copies are on one side of the split.

    Copies share the file name before `.rf.`, and the first of them is taken. Raises UserError for
    a folder without images and for lines that are no boxes.
    """
    images = sorted((folder / "train" / "images").glob("*.jpg"))
    if not images:
        raise UserError(f"{folder} has no train/images/*.jpg; give a YOLO export with boxes.")
    lesions: list[CutOut] = []
    skins: list[NDArray[np.uint8]] = []
    seen: set[str] = set()
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
    number = int.from_bytes(hashlib.sha256(source.encode()).digest()[:4]) / 2**32
    return "test" if number < _TEST_SHARE else "train"


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
    for top in range(0, height - _SKIN_SIDE + 1, _SKIN_SIDE // 2):
        for left in range(0, width - _SKIN_SIDE + 1, _SKIN_SIDE // 2):
            place = (left - 8, top - 8, left + _SKIN_SIDE + 8, top + _SKIN_SIDE + 8)
            if any(_overlap(place, other) for other in corners):
                continue
            patch_HW3 = pixels_HW3[top : top + _SKIN_SIDE, left : left + _SKIN_SIDE]
            grey_HW = cv2.cvtColor(patch_HW3, cv2.COLOR_RGB2GRAY).astype(np.float32)
            rough = float((grey_HW - cv2.GaussianBlur(grey_HW, (0, 0), 20)).std())
            if rough < _MOST_EDGE and grey_HW.mean() > 60 and skin_mask(patch_HW3).mean() > 0.98:
                found.append(patch_HW3.copy())
    return found[:2]

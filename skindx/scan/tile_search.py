"""The detector over the tiles of a photo at several scales, and one box a lesion of its boxes.

A lesion shows in up to four tiles of a scale, and in several scales. Whole boxes that overlap are
one lesion: their corners are averaged by score (weighted boxes fusion, Solovyev et al. 2021,
arXiv 1910.13302). A box that ends where its tile does may be a part of a lesion: it yields to a
whole one; parts without a whole are put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.machine import cpu_flags
from skindx.core.settings_base import Settings
from skindx.imaging.photo_gates import skin_mask
from skindx.models.detector import CELL, BatchDetector, Precision, TileBoxes
from skindx.scan.patches import Patches
from skindx.scan.pixel_store import Bools, Floats, Ints, Pixels, PixelStore


class ScanSettings(Settings):
    """Settings of one scan for every photo; a scan that goes on must have the same."""

    tile: int | None = Field(None, ge=64, le=4096, multiple_of=32)
    """Pixels of a tile's side; none: what the bundle's detector was trained on. Larger tiles show
    more around a lesion and waste less on overlaps."""
    overlap: float = Field(0.25, ge=0, le=0.75)
    """Share of a tile's side that neighbours have in common, at least: a lesion of at most this
    size is whole in one tile of the finest scale."""
    scales: int | None = Field(None, ge=1, le=16)
    """How many scales; none: until a tile holds the photo."""
    step: Literal[2, 4] = 4
    """How many times coarser a scale is than the one before."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the detector's convolutions; auto: bf16 where this machine's processor has it,
    and then for all workers."""
    confidence: float | None = Field(None, ge=0, lt=1)
    """Least score of a box; none: the bundle's own."""
    least_side: float = Field(10.0, ge=0, le=1e6)
    """Pixels of a lesion's longer side; what is smaller, as freckles are, is left out."""
    least_skin: float = Field(0.02, ge=0, le=1)
    """Share of a tile with a colour of skin, below which it is skipped."""
    margin: float = Field(1.5, ge=1, le=4)
    """Side of the crop that the ensemble sees, over the longer side of the box."""
    batch: int = Field(8, ge=1, le=256)
    """Number of tiles, or lesions, that go through the networks at once; a task of the queue holds
    as many or a multiple."""
    miss_rate: float | None = Field(None, gt=0, lt=1)
    """Level of the bundle's urgent risk that decides what is urgent; none: the default."""
    score_map: bool = False
    """Also blend the detector's scores over all tiles into a map (Zarr)."""


_LEFT = 0.8
"""Least box of a scale, as a share of the largest lesion that the next finer scale has whole."""
_SKIN_STEP = 4
"""Step in pixels between the pixels whose colour is tested for skin."""


@dataclass(frozen=True)
class Grid:
    """The tiles of one scale, on the cells of the map of scores; pixels are of that scale."""

    level: int
    width: int
    height: int
    tile: int
    overlap: int
    least: float = 0.0
    """Pixels of the whole photo: lesions with a shorter longer side are left to the next finer
    scale, which has them whole in one tile and with more pixels."""

    @cached_property
    def patches(self) -> Patches:
        """The tiles as patches of the map of scores: rows, columns."""
        cells = (-(-self.height // CELL), -(-self.width // CELL))
        return Patches(cells, (self.tile // CELL,) * 2, (-(-self.overlap // CELL),) * 2)

    def place(self, number: int) -> tuple[int, int]:
        """Return (left, top) of a tile; the last of a row may stand out by less than a cell."""
        down, across = self.patches[number]
        return across.start * CELL, down.start * CELL

    def read(self, store: PixelStore, number: int) -> Pixels:
        """Return a tile, always tile x tile x 3."""
        left, top = self.place(number)
        return store.read(self.level, left, top, self.tile, self.tile)

    def inner_sides(self, number: int) -> tuple[bool, bool, bool, bool]:
        """Tell which sides (left, top, right, bottom) of a tile lie inside the photo."""
        left, top = self.place(number)
        right, bottom = left + self.tile < self.width, top + self.tile < self.height
        return left > 0, top > 0, right, bottom


def grids(store: PixelStore, tile: int, settings: ScanSettings) -> list[Grid]:
    """Return the grids of all scales, the finest first."""
    overlap = round(settings.overlap * tile)
    photo_grids: list[Grid] = []
    levels = range(0, len(store.sizes), settings.step.bit_length() - 1)[: settings.scales]
    for level in levels:
        width, height = store.size(level)
        least = _LEFT * overlap * 2**level / settings.step if level else 0.0
        photo_grids.append(Grid(level, width, height, tile, overlap, least))
        if max(width, height) <= tile:
            break
    return photo_grids


def shows_skin(tile_SS3: Pixels, least: float) -> bool:
    """Tell whether enough of a tile has a colour of skin."""
    few = np.ascontiguousarray(tile_SS3[::_SKIN_STEP, ::_SKIN_STEP])
    return bool(skin_mask(few).mean() >= max(least, 1e-9))


EDGE = 3
"""Pixels: a box that ends so near to its tile's side may go on beyond it."""
TILES_A_LEVEL = 1 << 32
"""A tile as one number: its level times this, plus its number."""

# T = tiles, R = boxes of all tiles, G = cells of a tile's side


@dataclass(frozen=True)
class TilesAnswer:
    """Result of a batch of tiles."""

    rows_R8: Floats
    """x1, y1, x2, y2, score, label, tile, part, as `TileDetections.from_rows` takes them."""
    skipped: int
    """Tiles without skin."""
    maps: dict[int, NDArray[np.float32]]
    """Tile number -> scores G x G, for tiles with skin."""


def find_in_tiles(
    detector: BatchDetector,
    store: PixelStore,
    grid: Grid,
    numbers: Sequence[int],
    settings: ScanSettings,
) -> TilesAnswer:
    """Read tiles of one scale, leave out those without skin, and run the detector on the rest."""
    rows: list[Floats] = [np.empty((0, 8))]
    maps: dict[int, NDArray[np.float32]] = {}
    skipped = 0
    for first in range(0, len(numbers), settings.batch):
        tiles = {
            number: tile_SS3
            for number in numbers[first : first + settings.batch]
            if shows_skin(tile_SS3 := grid.read(store, number), settings.least_skin)
        }
        skipped += len(numbers[first : first + settings.batch]) - len(tiles)
        if not tiles:
            continue
        boxes_of_tiles, maps_TGG = detector.detect(
            np.stack(list(tiles.values())), settings.confidence
        )
        maps.update(zip(tiles, maps_TGG, strict=True))
        for number, boxes in zip(tiles, boxes_of_tiles, strict=True):
            rows.append(_rows(store, grid, number, boxes))
    return TilesAnswer(np.concatenate(rows), skipped, maps)


def _rows(store: PixelStore, grid: Grid, number: int, detected: TileBoxes) -> Floats:
    boxes_K4 = detected.boxes_K4.astype(np.float64)
    ends_K4 = np.concatenate([boxes_K4[:, :2] <= EDGE, boxes_K4[:, 2:] >= grid.tile - EDGE], axis=1)
    cut_K4 = ends_K4 & np.array(grid.inner_sides(number))
    parts_K = cut_K4.any(axis=1)
    # The neighbouring tile sees more of whatever is only a thin slice at a side.
    depths_K2 = boxes_K4[:, 2:] - boxes_K4[:, :2]
    thin_K = (cut_K4 & (np.tile(depths_K2, 2) <= 2 * EDGE)).any(axis=1) & (grid.overlap > 2 * EDGE)
    (left, top), (factor, dx, dy) = grid.place(number), store.to_full(grid.level)
    full_K4 = factor * (boxes_K4 + np.array([left, top] * 2)) + np.array([dx, dy] * 2)
    width, height = store.size()
    full_K4 = full_K4.clip(0, [width, height, width, height])
    sides_K2 = full_K4[:, 2:] - full_K4[:, :2]
    kept_K = (sides_K2.max(axis=1) >= grid.least) & (sides_K2.min(axis=1) > 0) & ~thin_K
    tile_K = np.full(len(boxes_K4), float(grid.level * TILES_A_LEVEL + number))
    columns = (detected.scores_K, detected.labels_K, tile_K, parts_K)
    return np.concatenate([full_K4[kept_K], np.stack(columns, axis=1)[kept_K]], axis=1)


SAME_TILE_IOU, OTHER_TILE_IOU = 0.5, 0.3
"""Least overlap (IoU) at which the corners of two whole boxes are averaged. In one tile the
detector has separated them; between scales corners differ by pixels."""
SAME_LESION_IOU = 0.3
"""Overlap (IoU) from which two final boxes are one lesion, and the better one stays."""
HIDDEN = 0.6
"""Share of a part's area inside a whole box, from which the part belongs to it."""
SLACK, SLACK_SHARE = 4.0, 0.1
"""Pixels, and share of its sides, by which a whole box is widened then: coarse scales round."""
INSIDE = 0.75
"""Share of a box inside another, from which the other holds it. Of the two the better one stays:
the inner one may be a part of a large lesion, as a fine scale sees it."""
GROUP_SCORE, OWN_GROUP_SCORE = 0.6, 0.8
"""Share of a box's score that two boxes in it must have, apart from each other, for it to be a
group of lesions and none itself, however good it is: fainter ones are parts of the lesion. The
second is for boxes of its own tile: there the detector saw all of them at once."""
TOUCHING = 0.15
"""Share of the smaller of two parts that both have, from which they are one lesion."""

# N = boxes, K = lesions


@dataclass(frozen=True)
class TileDetections:
    """Boxes of one photo as its tiles have them, in pixels of the whole photo."""

    boxes_N4: Floats
    scores_N: Floats
    labels_N: Ints
    tiles_N: Ints
    """Tile and scale, as one number."""
    parts_N: Bools
    """The box ends at a side of its tile that lies inside the photo."""

    @classmethod
    def from_rows(cls, rows: Floats) -> "TileDetections":
        """Take rows of x1, y1, x2, y2, score, label, tile, part, in any order."""
        rows = rows.reshape(-1, 8)
        # Sorted by score, then by all else, so that the order of the tiles' answers has no effect.
        order = np.lexsort((*rows[:, [3, 2, 1, 0, 5, 6]].T, -rows[:, 4]))
        rows = rows[order]
        return cls(
            rows[:, :4],
            rows[:, 4],
            rows[:, 5].astype(np.int64),
            rows[:, 6].astype(np.int64),
            rows[:, 7] > 0,
        )


def join(detections: TileDetections, least_side: float = 0.0) -> tuple[Floats, Floats, Ints]:
    """Return boxes K x 4, scores K and labels K, best first, one a lesion.

    Boxes whose longer side has less than `least_side` pixels are left out.
    """
    boxes_K4, leaders_K = _join_whole(detections)
    slack_K2 = SLACK + SLACK_SHARE * (boxes_K4[:, 2:] - boxes_K4[:, :2])
    wide_K4 = boxes_K4 + np.concatenate([-slack_K2, slack_K2], axis=1)
    left = [
        int(n)
        for n in np.flatnonzero(detections.parts_N)
        if not (_covered(detections.boxes_N4[n], wide_K4) >= HIDDEN).any()
    ]
    more_K4, more_leaders = _join_parts(detections, left)
    boxes_K4, leaders_K = np.concatenate([boxes_K4, more_K4]), np.append(leaders_K, more_leaders)
    scores_K, labels_K = detections.scores_N[leaders_K], detections.labels_N[leaders_K]
    order = np.lexsort((boxes_K4[:, 1], boxes_K4[:, 0], -scores_K))
    sides_K2 = boxes_K4[order, 2:] - boxes_K4[order, :2]
    order = order[sides_K2.max(axis=1, initial=0) >= least_side]
    # First of all: a box around two close lesions would pass for either of them.
    tiles_K = detections.tiles_N[leaders_K]
    order = order[~_groups(boxes_K4[order], scores_K[order], tiles_K[order])]
    kept = _best(boxes_K4[order])
    return boxes_K4[order][kept], scores_K[order][kept], labels_K[order][kept]


def _join_whole(detections: TileDetections) -> tuple[Floats, Ints]:
    """Return boxes, and of each the number of its best detection."""
    groups: list[list[int]] = []
    first_K4 = np.empty((0, 4))
    for n in np.flatnonzero(~detections.parts_N):
        overlap_K = iou(detections.boxes_N4[n], first_K4)
        least = OTHER_TILE_IOU
        if len(overlap_K) and overlap_K.max() >= least:
            group = groups[int(overlap_K.argmax())]
            apart = any(detections.tiles_N[m] == detections.tiles_N[n] for m in group)
            # One that holds the other may be a group of lesions: which it is shows in the end.
            apart |= _nested(detections.boxes_N4[n], first_K4[[overlap_K.argmax()]])[0]
            if not apart or overlap_K.max() >= SAME_TILE_IOU:
                group.append(int(n))
                continue
        groups.append([int(n)])
        first_K4 = np.concatenate([first_K4, detections.boxes_N4[n][None]])
    boxes = [
        np.average(detections.boxes_N4[group], axis=0, weights=detections.scores_N[group])
        for group in groups
    ]
    return np.array(boxes).reshape(-1, 4), np.array([group[0] for group in groups], np.int64)


def _join_parts(detections: TileDetections, left: list[int]) -> tuple[Floats, Ints]:
    """Put parts of one lesion together: the smallest rectangle around all that touch."""
    boxes: list[Floats] = []
    leaders: list[int] = []
    for n in left:
        box, leader = detections.boxes_N4[n], n
        while True:  # a part may bridge two groups, and a larger group touch a third
            touching = [k for k, other in enumerate(boxes) if _touch(box, other)]
            if not touching:
                break
            for k in reversed(touching):
                other = boxes.pop(k)
                leader = min(leader, leaders.pop(k))
                box = np.concatenate([np.minimum(box, other)[:2], np.maximum(box, other)[2:]])
        boxes.append(box)
        leaders.append(leader)
    return np.array(boxes).reshape(-1, 4), np.array(leaders, np.int64)


def _touch(a_4: Floats, b_4: Floats) -> bool:
    return bool(_shared(a_4, b_4[None])[0] >= TOUCHING * min(_area(a_4), _area(b_4)))


def _groups(boxes_K4: Floats, scores_K: Floats, tiles_K: Ints) -> Bools:
    """Return which boxes, best first, hold two others apart from each other: groups of lesions.

    A group inside a box counts as the lesions that it is of.
    """
    groups_K = np.zeros(len(boxes_K4), bool)
    for n in np.argsort(_areas(boxes_K4), kind="stable"):
        least_K = np.where(tiles_K == tiles_K[n], OWN_GROUP_SCORE, GROUP_SCORE)
        box, good_K = boxes_K4[n], scores_K >= least_K * scores_K[n]
        inner_M4 = boxes_K4[held(box, boxes_K4) & good_K & ~groups_K]
        if len(inner_M4) > 1:
            groups_K[n] = len(_best(inner_M4)) > 1
    return groups_K


def _best(boxes_K4: Floats) -> Ints:
    """Return the places of boxes, best first, one a lesion.

    Boxes that overlap by `SAME_LESION_IOU`, or of which one lies in the other, are one lesion: the
    same boxes again give the same places.
    """
    kept: list[int] = []
    for n, box in enumerate(boxes_K4):
        better_K4 = boxes_K4[kept]
        if not (_nested(box, better_K4) | (iou(box, better_K4) >= SAME_LESION_IOU)).any():
            kept.append(n)
    return np.array(kept, np.int64)


def _nested(box_4: Floats, boxes_N4: Floats) -> Bools:
    """Return which of others lie in a box or hold it, N."""
    least_N = np.minimum(_area(box_4), _areas(boxes_N4))
    return _shared(box_4, boxes_N4) >= INSIDE * np.maximum(least_N, 1e-12)


def held(box_4: Floats, boxes_N4: Floats) -> Bools:
    """Return which of others lie in a box and are not the same lesion outlined again, N."""
    inside_N = _shared(box_4, boxes_N4) >= INSIDE * np.maximum(_areas(boxes_N4), 1e-12)
    smaller_N = _areas(boxes_N4) < _area(box_4)
    return inside_N & smaller_N & (iou(box_4, boxes_N4) < SAME_TILE_IOU)


def iou(box_4: Floats, boxes_N4: Floats) -> Floats:
    """Return intersection over union of a box with each of others, N."""
    shared_N = _shared(box_4, boxes_N4)
    union_N: Floats = _area(box_4) + _areas(boxes_N4) - shared_N
    return shared_N / np.maximum(union_N, 1e-12)


def _covered(box_4: Floats, boxes_N4: Floats) -> Floats:
    return _shared(box_4, boxes_N4) / max(_area(box_4), 1e-12)


def _shared(box_4: Floats, boxes_N4: Floats) -> Floats:
    low_N2 = np.maximum(box_4[:2], boxes_N4[:, :2])
    high_N2 = np.minimum(box_4[2:], boxes_N4[:, 2:])
    shared_N: Floats = np.maximum(high_N2 - low_N2, 0).prod(axis=1)
    return shared_N


def _area(box_4: Floats) -> float:
    return float((box_4[2] - box_4[0]) * (box_4[3] - box_4[1]))


def _areas(boxes_N4: Floats) -> Floats:
    areas_N: Floats = (boxes_N4[:, 2:] - boxes_N4[:, :2]).prod(axis=1)
    return areas_N


_FLAGS = {"avx512_bf16", "amx_bf16"}


def fast_precision(device: str) -> Precision:
    """Return bf16 where this machine computes it natively, else fp32."""
    if device != "cpu":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if cpu_flags() & _FLAGS else "fp32"

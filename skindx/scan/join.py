"""One box a lesion, from the boxes of overlapping tiles at several scales.

A lesion shows in up to four tiles of a scale, and in several scales. Whole boxes that overlap are
one lesion: their corners are averaged by score (weighted boxes fusion, Solovyev et al. 2021,
arXiv 1910.13302). A box that ends where its tile does may be a part of a lesion: it yields to a
whole one; parts without a whole are put together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAME_TILE_IOU, OTHER_TILE_IOU = 0.5, 0.3
"""From this overlap on two whole boxes are one lesion: in one tile the detector has separated them
already, and between scales corners differ by pixels."""
HIDDEN = 0.6
"""Share of a part's area inside a whole box, from which the part belongs to it."""
SLACK, SLACK_SHARE = 4.0, 0.1
"""Pixels, and share of its sides, by which a whole box is widened then: coarse scales round."""
INSIDE = 0.75
"""Share of a box inside another, from which the other holds it. Of the two the better one stays:
the inner one may be a part of a large lesion, as a fine scale sees it."""
GROUP_SCORE = 0.5
"""Share of a box's score that two boxes in it must have, apart from each other, for it to be a
group of lesions and none itself, however good it is."""
TOUCHING = 0.15
"""Share of the smaller of two parts that both have, from which they are one lesion."""

# N = boxes, K = lesions


@dataclass(frozen=True)
class Found:
    """Boxes of one photo as its tiles have them, in pixels of the whole photo."""

    boxes_N4: NDArray[np.float64]
    scores_N: NDArray[np.float64]
    labels_N: NDArray[np.int64]
    tiles_N: NDArray[np.int64]
    """Tile and scale, as one number."""
    parts_N: NDArray[np.bool_]
    """The box ends at a side of its tile that lies inside the photo."""

    @classmethod
    def of(cls, rows: NDArray[np.float64]) -> "Found":
        """Take rows of x1, y1, x2, y2, score, label, tile, part, in any order."""
        rows = rows.reshape(-1, 8)
        # By score, then by all else: the order in which tiles were answered does not matter.
        order = np.lexsort((*rows[:, [3, 2, 1, 0, 5, 6]].T, -rows[:, 4]))
        rows = rows[order]
        return cls(
            rows[:, :4],
            rows[:, 4],
            rows[:, 5].astype(np.int64),
            rows[:, 6].astype(np.int64),
            rows[:, 7] > 0,
        )


def join(
    found: Found, least_side: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return boxes K x 4, scores K and labels K, best first, one a lesion.

    Boxes whose longer side has less than `least_side` pixels are left out.
    """
    boxes_K4, scores_K, labels_K = _join_whole(found)
    slack_K2 = SLACK + SLACK_SHARE * (boxes_K4[:, 2:] - boxes_K4[:, :2])
    wide_K4 = boxes_K4 + np.concatenate([-slack_K2, slack_K2], axis=1)
    left = [
        int(n)
        for n in np.flatnonzero(found.parts_N)
        if not (_covered(found.boxes_N4[n], wide_K4) >= HIDDEN).any()
    ]
    more_K4, more_scores, more_labels = _join_parts(found, left)
    boxes_K4 = np.concatenate([boxes_K4, more_K4])
    scores_K, labels_K = np.append(scores_K, more_scores), np.append(labels_K, more_labels)
    order = np.lexsort((boxes_K4[:, 1], boxes_K4[:, 0], -scores_K))
    sides_K2 = boxes_K4[order, 2:] - boxes_K4[order, :2]
    order = order[sides_K2.max(axis=1, initial=0) >= least_side]
    order = order[_distinct(boxes_K4[order])]
    order = order[~_groups(boxes_K4[order], scores_K[order])]
    kept = _best(boxes_K4[order])
    return boxes_K4[order][kept], scores_K[order][kept], labels_K[order][kept]


def _join_whole(
    found: Found,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    groups: list[list[int]] = []
    first_K4 = np.empty((0, 4))
    for n in np.flatnonzero(~found.parts_N):
        overlap_K = iou(found.boxes_N4[n], first_K4)
        least = OTHER_TILE_IOU
        if len(overlap_K) and overlap_K.max() >= least:
            group = groups[int(overlap_K.argmax())]
            same = any(found.tiles_N[m] == found.tiles_N[n] for m in group)
            if not same or overlap_K.max() >= SAME_TILE_IOU:
                group.append(int(n))
                continue
        groups.append([int(n)])
        first_K4 = np.concatenate([first_K4, found.boxes_N4[n][None]])
    boxes = [
        np.average(found.boxes_N4[group], axis=0, weights=found.scores_N[group]) for group in groups
    ]
    leaders = [group[0] for group in groups]
    return np.array(boxes).reshape(-1, 4), found.scores_N[leaders], found.labels_N[leaders]


def _join_parts(
    found: Found, left: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Put parts of one lesion together: the smallest rectangle around all that touch."""
    boxes: list[NDArray[np.float64]] = []
    leaders: list[int] = []
    for n in left:
        box, leader = found.boxes_N4[n], n
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
    return np.array(boxes).reshape(-1, 4), found.scores_N[leaders], found.labels_N[leaders]


def _touch(a_4: NDArray[np.float64], b_4: NDArray[np.float64]) -> bool:
    return bool(_shared(a_4, b_4[None])[0] >= TOUCHING * min(_area(a_4), _area(b_4)))


def _distinct(boxes_K4: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of boxes, best first, that no better one overlaps as the same lesion."""
    kept: list[int] = []
    for n, box in enumerate(boxes_K4):
        if not (iou(box, boxes_K4[kept]) >= SAME_TILE_IOU).any():
            kept.append(n)
    return np.array(kept, np.int64)


def _groups(boxes_K4: NDArray[np.float64], scores_K: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes, best first, hold two others apart from each other: groups of lesions."""
    groups_K = np.zeros(len(boxes_K4), bool)
    for n, box in enumerate(boxes_K4):
        inner_M4 = boxes_K4[held(box, boxes_K4) & (scores_K >= GROUP_SCORE * scores_K[n])]
        if len(inner_M4) > 1:
            groups_K[n] = len(_best(inner_M4)) > 1
    return groups_K


def _best(boxes_K4: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of boxes, best first, that neither hold a better one nor lie in it."""
    kept: list[int] = []
    for n, box in enumerate(boxes_K4):
        better_K4 = boxes_K4[kept]
        nested = (_covered(box, better_K4) >= INSIDE) | held(box, better_K4)
        if not nested.any():
            kept.append(n)
    return np.array(kept, np.int64)


def held(box_4: NDArray[np.float64], others_N4: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of others lie in a box and are not the same lesion outlined again, N."""
    inside_N = _shared(box_4, others_N4) >= INSIDE * np.maximum(_areas(others_N4), 1e-12)
    smaller_N = _areas(others_N4) < _area(box_4)
    held_N: NDArray[np.bool_] = inside_N & smaller_N & (iou(box_4, others_N4) < SAME_TILE_IOU)
    return held_N


def iou(box_4: NDArray[np.float64], others_N4: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return intersection over union of a box with each of others, N."""
    shared_N = _shared(box_4, others_N4)
    union_N: NDArray[np.float64] = _area(box_4) + _areas(others_N4) - shared_N
    return shared_N / np.maximum(union_N, 1e-12)


def _covered(box_4: NDArray[np.float64], others_N4: NDArray[np.float64]) -> NDArray[np.float64]:
    return _shared(box_4, others_N4) / max(_area(box_4), 1e-12)


def _shared(box_4: NDArray[np.float64], others_N4: NDArray[np.float64]) -> NDArray[np.float64]:
    low_N2 = np.maximum(box_4[:2], others_N4[:, :2])
    high_N2 = np.minimum(box_4[2:], others_N4[:, 2:])
    shared_N: NDArray[np.float64] = np.maximum(high_N2 - low_N2, 0).prod(axis=1)
    return shared_N


def _area(box_4: NDArray[np.float64]) -> float:
    return float((box_4[2] - box_4[0]) * (box_4[3] - box_4[1]))


def _areas(boxes_N4: NDArray[np.float64]) -> NDArray[np.float64]:
    areas_N: NDArray[np.float64] = (boxes_N4[:, 2:] - boxes_N4[:, :2]).prod(axis=1)
    return areas_N

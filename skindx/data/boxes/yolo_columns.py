"""What the columns of YOLO label lines are: boxes, polygons, confidences, track ids, keypoints.

`class cx cy w h` is a box, a fifth value its confidence or track id. From six values on, a line may
be a polygon `x1 y1 x2 y2 x3 y3 …` as well as a box with a confidence and a track id, or with
keypoints: ultralytics writes all of them into the same kind of file (`save_txt`, `save_conf`,
`track`), and only `kpt_shape` in data.yaml tells keypoints apart. A folder comes from one tool, so
what one of its lines can only be, the others are as well. Where no line tells, the lines are
refused: a confidence is no coordinate.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skindx.data.boxes.box_file import Columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Points = NDArray[np.float64]

_SLACK = 0.01
"""Of the image: tools round, and let boxes stand out a little."""
_SURE_CORNERS = 8
"""So many points in the order of a polygon without crossing are no keypoints."""
_MOST_KEYPOINTS = 500
"""More than any model of a body, hand or face has."""
_MOST_LOOKED_AT = 2000
"""Lines of a folder that are searched for a polygon: each is a millisecond's work or less."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What lines of six and more values are; None: the folder does not tell."""

    kind: Columns | None
    keypoints: int = 0
    """Values of keypoints after the box of a line, as data.yaml says."""
    stated: bool = False
    """A person says that each line begins with a box: what comes after it does not count."""


@dataclass(frozen=True, slots=True)
class Line:
    """A box in shares of the image: x1, y1, x2, y2, and its confidence where it has one."""

    corners: tuple[float, float, float, float]
    score: float | None = None


def meaning_of(
    lines: Iterable[Sequence[float]], columns: Columns | None, keypoints: int
) -> Meaning:
    """Return what the long lines of a folder are; each line is its values after the class."""
    if columns or keypoints:
        return Meaning(columns or "box", keypoints, stated=columns == "box")
    long = [values for values in lines if len(values) >= 6]
    polygons = any(_only_polygon(values) for values in long[:_MOST_LOOKED_AT])
    tracks = any(_only_tracked(values) for values in long)
    # Keypoints have the same number in every line, and an id that is missing makes it odd.
    even = {len(values) for values in long if len(values) % 2 == 0 and _inside(values)}
    if tracks and not polygons:
        return Meaning("box")
    return Meaning("polygon" if not tracks and (polygons or len(even) > 1) else None)


def read_values(values: Sequence[float], meaning: Meaning) -> Line:
    """Read a line's values after the class. Raises ValueError that says which columns and why."""
    count = len(values)
    if count < 4 or not all(map(math.isfinite, values)):
        raise ValueError("a line must be `class x y width height` in shares of the image")
    if count == 4 or meaning.stated:
        return Line(_box(values), _share(values[4]) if count == 5 else None)
    if count == 5:
        return Line(_box(values), _fifth(values[4]))
    if meaning.kind == "polygon":
        return _polygon(values)
    if meaning.keypoints:
        extra = count - 4 - meaning.keypoints
        if extra not in (0, 1, 2):
            raise ValueError(
                f"a line of {count + 1} columns, and kpt_shape of data.yaml makes it "
                f"{5 + meaning.keypoints}"
            )
        return Line(_box(values), _share(values[4 + meaning.keypoints]) if extra else None)
    if meaning.kind == "box" and count == 6 and _is_id(values[5]) and 0 <= values[4] <= 1:
        return Line(_box(values), _share(values[4]))
    raise ValueError(
        f"columns 6 to {count + 1} may be a confidence, a track id or keypoints of a box, or the "
        f"line may be a polygon; say which with --columns box or --columns polygon (in a recipe "
        f"boxes.columns, or columns of a source)"
    )


def _box(values: Sequence[float]) -> tuple[float, float, float, float]:
    cx, cy, w, h = values[:4]
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _fifth(value: float) -> float | None:
    """Return a confidence, None for a track id. Raises ValueError for what is neither."""
    if value.is_integer() and value >= 0:
        return None  # 1 may be either, and the box is the same
    if not 0 <= value <= 1:
        raise ValueError("column 6 is neither a confidence (0 to 1) nor a track id")
    return _share(value)


def _polygon(values: Sequence[float]) -> Line:
    score = None
    if len(values) % 2:
        *values, last = values
        score = _share(last)
        if score is None:
            raise ValueError(f"column {len(values) + 2} is no confidence (0 to 1) of a polygon")
    xs, ys = values[::2], values[1::2]
    return Line((min(xs), min(ys), max(xs), max(ys)), score)


def _share(value: float) -> float | None:
    return value if 0 <= value <= 1 else None


def _is_id(value: float) -> bool:
    return value >= 0 and value.is_integer()


def _inside(values: Sequence[float]) -> bool:
    return all(-_SLACK <= value <= 1 + _SLACK for value in values)


def _is_box(values: Sequence[float]) -> bool:
    """Tell whether the first four values may be a box of the image."""
    x1, y1, x2, y2 = _box(values)
    return _inside((x1, y1, x2, y2)) and x1 < x2 and y1 < y2


def _only_tracked(values: Sequence[float]) -> bool:
    """Tell whether a line can only be a box, its confidence and its track id."""
    if len(values) != 6 or not _is_box(values) or _share(values[4]) is None:
        return False
    return _is_id(values[5]) and values[5] > 1


def _only_polygon(values: Sequence[float]) -> bool:
    """Tell whether a line can only be a polygon, with or without a confidence after it."""
    if len(values) % 2:
        *values, last = values
        if len(values) < 6 or _share(last) is None:
            return False
    if not _inside(values):
        return False
    points = list(zip(values[::2], values[1::2], strict=True))
    if not _is_box(values) or points[0] == points[-1]:
        return True
    return _is_rectangle(points) or (len(points) >= _SURE_CORNERS and _is_simple(points))


def _is_rectangle(points: Sequence[tuple[float, float]]) -> bool:
    if len(points) != 4 or len(set(points)) != 4:
        return False
    return len({x for x, _ in points}) == len({y for _, y in points}) == 2


def _is_simple(points: Sequence[tuple[float, float]]) -> bool:
    """Tell whether no two sides of a polygon cross or touch but neighbours at their corner."""
    import numpy as np

    # N = points; sides run from start to end
    if len(points) > _MOST_KEYPOINTS:
        return True
    if len(set(points)) != len(points):
        return False
    start_N2 = np.asarray(points, dtype=float)
    end_N2 = np.roll(start_N2, -1, axis=0)
    along_N2 = end_N2 - start_N2

    straddles_NN = _sides(start_N2, along_N2, start_N2) * _sides(start_N2, along_N2, end_N2) <= 0
    low_N2, high_N2 = np.minimum(start_N2, end_N2), np.maximum(start_N2, end_N2)
    near_NN = ((low_N2[:, None] <= high_N2[None]) & (low_N2[None] <= high_N2[:, None])).all(axis=-1)
    n = np.arange(len(points))
    apart_NN = np.abs(n[:, None] - n[None])
    neighbours_NN = (apart_NN <= 1) | (apart_NN == len(points) - 1)
    return not (straddles_NN & straddles_NN.T & near_NN & ~neighbours_NN).any()


def _sides(start_N2: "Points", along_N2: "Points", points_M2: "Points") -> "Points":
    """Return on which side of each line each point is, by its sign, N x M."""
    to_NM2 = points_M2[None] - start_N2[:, None]
    sides_NM: Points = along_N2[:, None, 0] * to_NM2[..., 1] - along_N2[:, None, 1] * to_NM2[..., 0]
    return sides_NM

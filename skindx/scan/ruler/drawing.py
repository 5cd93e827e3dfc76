"""The ticks that were found, drawn on the photo for a person to check."""

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixels import ReadRegion
from skindx.scan.ruler.find import Ruler

_LONGEST_SIDE = 2400
_THIN, _THICK, _RIM = (0, 70, 190), (213, 43, 30), (255, 255, 255)


def confirmation_image(
    read: ReadRegion, width: int, height: int, ruler: Ruler
) -> NDArray[np.uint8]:
    """Return the part of the photo with the ruler, with a line on each of its ticks.

    uint8 RGB with at most 2,400 pixels along the longer side; every line begins where its tick
    does and points away from the ruler.
    """
    import cv2

    row = ruler.row
    room = 12 * row.period
    low = np.clip(np.floor(row.ticks_T2.min(axis=0) - room), 0, (width, height)).astype(int)
    high = np.clip(np.ceil(row.ticks_T2.max(axis=0) + room), 0, (width, height)).astype(int)
    scale = min(1.0, _LONGEST_SIDE / int((high - low).max()))
    image_HW3 = np.ascontiguousarray(read(low[0], low[1], high[0], high[1], scale)).copy()
    # A ruler far away is enlarged: neighbouring lines must be distinguishable.
    enlarged = max(1, min(round(8 / (row.period * scale)), _LONGEST_SIDE // max(image_HW3.shape)))
    image_HW3 = cv2.resize(
        image_HW3, None, fx=enlarged, fy=enlarged, interpolation=cv2.INTER_NEAREST
    )
    scale *= enlarged
    across = np.array(row.across) * row.period
    tops = []
    for place, longest in zip(row.ticks_T2, ruler.longest, strict=True):
        ends = place - (5 if longest else 2.5) * across, place - 0.3 * across
        top, foot = (np.rint((end - low) * scale).astype(int).tolist() for end in ends)
        colour = _THICK if longest else _THIN
        cv2.line(image_HW3, top, foot, _RIM, 7 if longest else 3, cv2.LINE_AA)
        cv2.line(image_HW3, top, foot, colour, 3 if longest else 1, cv2.LINE_AA)
        tops += [top] if longest else []
    middle = np.rint(np.mean(tops[:2], axis=0)).astype(int).tolist()
    size = max(0.5, row.period * scale / 16)
    for colour, thick in ((_RIM, 5), (_THICK, 2)):
        cv2.putText(image_HW3, "1 cm", middle, 0, size, colour, thick, cv2.LINE_AA)
    drawn_HW3: NDArray[np.uint8] = image_HW3
    return drawn_HW3

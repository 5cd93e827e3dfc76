"""Lesion boxes: the value type, the formats that others draw them in, and who drew what."""

from skindx.data.box import UNKNOWN_SIZE, Box, BoxedPicture
from skindx.data.boxes.coco import read_coco
from skindx.data.boxes.formats import BoxFormat, BoxSource, read_boxes

__all__ = [
    "UNKNOWN_SIZE",
    "Box",
    "BoxFormat",
    "BoxSource",
    "BoxedPicture",
    "read_boxes",
    "read_coco",
]

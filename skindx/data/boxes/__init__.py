"""Lesion boxes: the formats that others draw them in, and who drew what."""

from skindx.data.boxes.coco import read_coco
from skindx.data.boxes.formats import BoxFormat, BoxSource, read_boxes

__all__ = ["BoxFormat", "BoxSource", "read_boxes", "read_coco"]

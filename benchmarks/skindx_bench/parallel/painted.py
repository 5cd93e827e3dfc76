"""Painted skin as one array, for trainings of a minute."""

from pathlib import Path

import cv2
import numpy as np

from skindx.data.synthetic.painter import CLASSES, paint


def write_images(file: Path, images: int, side: int) -> int:
    """Write images N x S x S x 3 and labels N in a fixed random order; return their classes."""
    labels_N = np.random.default_rng(0).permutation(np.arange(images) % len(CLASSES))
    images_NSS3 = np.empty((images, side, side, 3), np.uint8)
    for number, label in enumerate(labels_N.tolist()):
        pixels = paint(CLASSES[label], number).pixels
        edge = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - edge) // 2, (pixels.shape[1] - edge) // 2
        square = pixels[top : top + edge, left : left + edge]
        images_NSS3[number] = cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA)
    np.savez(file, images=images_NSS3, labels=labels_N.astype(np.int64))
    return len(CLASSES)

"""A dataset folder of painted images and copies of some of them."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data import layout
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint

ORIGINALS = 6


def painted(number: int) -> NDArray[np.uint8]:
    """Return an image of 160 pixels along its longer side: small ones are quick to make."""
    pixels = paint(CLASSES[number % len(CLASSES)], number, 5).pixels
    return np.asarray(cv2.resize(pixels, (160, 120), interpolation=cv2.INTER_AREA))


def put(dataset: Path, pixels: NDArray[np.uint8]) -> str:
    return layout.store_bytes(dataset, encode_jpeg(np.ascontiguousarray(pixels)), ".jpg")[1]


def make_dataset(dataset: Path) -> tuple[list[str], set[tuple[int, int]]]:
    """Return paths, and which pairs of positions are copies: of three originals, one each."""
    originals = [painted(number) for number in range(ORIGINALS)]
    copies = [originals[0][8:, 10:], originals[2][:, ::-1][4:-9], np.rot90(originals[4])]
    paths = [put(dataset, pixels) for pixels in (*originals, *copies)]
    return paths, {(0, 6), (2, 7), (4, 8)}
